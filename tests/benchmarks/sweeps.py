"""What sweeps find, what they cost, and whether a choice without labels can be trusted.

    python tests/benchmarks/sweeps.py search cora photo            TPE with ASHA, 30 trials; best against paper
    python tests/benchmarks/sweeps.py trust cora citeseer photo    rank of label-free objectives against the probe
    python tests/benchmarks/sweeps.py asha cora citeseer photo     epochs ASHA saves on these trials, and costs
    python tests/benchmarks/sweeps.py figure photo                 the paper's figure: accuracy against α, then T_M

Sweeps and runs are kept in --runs and resumed: a second call prints what is there and runs what is missing. Widths and
epochs are lowered alike for all (SETTINGS, EPOCHS), so that a sweep takes minutes on two cores. Selection sees
validation accuracy only; test accuracy is printed once per setting, over seeds that the search did not use.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy.stats import kendalltau, spearmanr

import trainer
from trainer.config import TrainSpec, parse_spec, spec_hash
from trainer.files.documents import apply_overrides
from trainer.presets import preset_document
from tuner.config import SweepSpec, best_spec, parse_sweep
from tuner.journal import TrialRecord, read_sweep
from tuner.results import best_trial
from tuner.schedule import Halving
from tuner.space import changed, default_space
from tuner.sweep import run_sweep

WIDTH = ["encoder.hidden=128", "encoder.dim=128", "method.metric.hidden=128"]
SETTINGS = {  # an epoch of Photo has eight steps in this scope, hence fewer of them
    "cora": [*WIDTH, "sampling.negatives=graph"],
    "citeseer": [*WIDTH, "sampling.negatives=graph"],
    "photo": [*WIDTH, "sampling.negatives=batch", "sampling.batch_size=1024"],
}
EPOCHS = {"cora": (25, 50, 75, 100), "citeseer": (10, 25, 50), "photo": (10, 20, 30, 50)}
FULL_EPOCHS = EPOCHS | {"photo": (10, 20)}  # where no trial is stopped early
FULL_STEPS = {"cora": 10, "citeseer": 3, "photo": 3}  # most metric steps there
FRESH = range(100, 105)  # seeds of the confirmation; the search uses 0
PAPER = {"cora": 84.93, "citeseer": 73.37, "photo": 93.36}  # test accuracy of NML-GCL in the paper's table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["search", "trust", "asha", "figure"])
    parser.add_argument("datasets", nargs="+", choices=list(SETTINGS))
    parser.add_argument("--runs", type=Path, default=Path("runs/sweeps"))
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=20, help="of each run of `figure`")
    parser.add_argument("--replay", action="store_true", help="asha: only ask the scheduler about recorded reports")
    options = parser.parse_args()
    {"search": search, "trust": trust, "asha": asha, "figure": figure}[options.what](options)


def sweep(
    options: argparse.Namespace, name: str, preset: str, dataset: str, *, overrides: Sequence[str] = (),
    epochs: dict[str, tuple[int, ...]] = EPOCHS, steps: dict[str, int] = {}, **fields: Any,  # noqa: B006 (read only)
) -> Path:  # fmt: skip
    """Run a sweep, or what is left of it, and return its directory."""
    quiet = ["run.track=false", "evaluation.figures=false"]
    base = apply_overrides(preset_document(preset, dataset), [*SETTINGS[dataset], *quiet, *overrides])
    space = {path: dimension.model_dump() for path, dimension in default_space(parse_spec(base)).items()}
    space["optimiser.epochs"] = {"kind": "choice", "values": epochs[dataset]}
    space["method.inner_steps"] = {"kind": "integer", "low": 1, "high": steps.get(dataset, 10)}
    spec = parse_sweep({"base": base, "space": space, "trials": options.trials, "concurrency": 2, **fields})
    directory = options.runs / f"{dataset}-{name}"
    run_sweep(spec, directory, on_event=tell)
    return directory


def tell(event: dict[str, Any]) -> None:
    if event["type"] == "done":
        print(f"  trial {event['number']} {event['state']} {event['value']} {event['seconds']:.0f} s", flush=True)


def search(options: argparse.Namespace) -> None:
    """The best of a sweep over the defaults, and the paper's setting, on fresh seeds."""
    for dataset in options.datasets:
        eighth = EPOCHS[dataset][-1] // 8
        early = {"kind": "asha", "grace_epochs": eighth, "reduction": 2}
        directory = sweep(options, "search", "nml", dataset, scheduler=early, report_every=eighth)
        spec, trials, _ = read_sweep(directory)
        best = best_trial(trials)
        assert best is not None
        states = [trial.state for trial in trials.values()]
        print(f"\n{dataset}: {len(trials)} trials, {', '.join(f'{states.count(s)} {s}' for s in sorted(set(states)))}")
        print(f"overhead: {overhead(directory):.3f} × (training seconds / concurrency)")
        rows = {
            f"best (trial {best.number})": best_spec(spec, best.changes),
            "base `nml` (trial 0)": best_spec(spec, trials[0].changes),
            "paper `nml-official`": official(dataset, spec),
        }
        print("| setting | validation % in the search | test % over 5 fresh seeds | paper |\n|---|---|---|---|")
        values = [best.value, trials[0].last_value, None]
        for (name, asked), value in zip(rows.items(), values, strict=True):
            tests = [
                100 * judged(asked, seed, options.runs / f"{dataset}-{spec_hash(asked)[:10]}")["probe"]["test"]
                for seed in FRESH
            ]
            shown = "–" if value is None else f"{100 * value:.2f}"
            print(f"| {name} | {shown} | {spread(tests)} | {PAPER[dataset]} |", flush=True)
        print("best:", ", ".join(f"{path}={value}" for path, value in best.changes.items()))


def official(dataset: str, spec: SweepSpec) -> TrainSpec:
    base = apply_overrides(preset_document("nml-official", dataset), [*SETTINGS[dataset], "run.track=false"])
    asked = parse_spec(base)
    return changed(asked, {"evaluation.split_seed": best_spec(spec, {}).evaluation.split_seed})


def judged(asked: TrainSpec, seed: int, directory: Path) -> dict[str, Any]:
    fresh = changed(asked, {"run.seed": seed, "run.threads": 2, "evaluation.cluster_seeds": 1})
    return dict(trainer.fit(fresh, directory.with_name(f"{directory.name}-{seed}"), resume=True).metrics["eval"])


def trust(options: argparse.Namespace) -> None:
    """All trials run to their end, on a graph without a tenth of its edges: what does each objective think of them?"""
    rows = []
    for dataset in options.datasets:
        directory = full_trials(options, dataset)
        finished = [trial for trial in read_sweep(directory)[1].values() if trial.state == "finished"]
        figures = [trial.reports[-1].figures for trial in finished]
        accuracy = [figure["val_accuracy"] for figure in figures]
        for objective in ("link_auc", "i_nml"):
            values = [figure[objective] for figure in figures]
            chosen = accuracy[max(range(len(values)), key=values.__getitem__)]
            rows.append(
                f"| {dataset} | {objective} | {len(values)} | {spearmanr(values, accuracy)[0]:.2f} | "
                f"{kendalltau(values, accuracy)[0]:.2f} | {100 * chosen:.2f} | {100 * max(accuracy):.2f} | "
                f"{100 * statistics.median(accuracy):.2f} |"
            )
        print(f"overhead: {overhead(directory):.3f} × (training seconds / concurrency)")
        print(f"{dataset}, mean validation % of trials by a:", parts(finished, "method.reg.coefficient", (3, 30)))
        print(f"{dataset}, mean validation % of trials by T_M:", parts(finished, "method.inner_steps", (4, 8)))
    print("| data set | objective | trials | Spearman | Kendall | validation % of its choice | of the best | median |")
    print("|---|---|---|---|---|---|---|---|", *rows, sep="\n")


def parts(trials: list[TrialRecord], path: str, bounds: tuple[int, int]) -> str:
    """The mean value of the trials below, between and above two bounds of one field, all others varying too."""
    groups: list[list[float]] = [[], [], []]
    for trial in trials:
        assert trial.value is not None
        groups[sum(trial.changes[path] >= bound for bound in bounds)].append(100 * trial.value)
    names = (f"below {bounds[0]}", f"{bounds[0]} to {bounds[1]}", f"from {bounds[1]} on")
    return ", ".join(
        f"{name} {statistics.mean(group):.1f} ({len(group)})"
        for name, group in zip(names, groups, strict=True)
        if group
    )


def full_trials(options: argparse.Namespace, dataset: str) -> Path:
    return sweep(
        options, "full", "nml", dataset, algorithm="random", scheduler={"kind": "none"}, held_out_edges=0.1,
        report_every=FULL_EPOCHS[dataset][-1] // 8, epochs=FULL_EPOCHS, steps=FULL_STEPS,
    )  # fmt: skip


def asha(options: argparse.Namespace) -> None:
    """The trials of `trust` with and without stopping early: epochs trained, and the best that is left."""
    rows = []
    for dataset in options.datasets:
        spec, full, _ = read_sweep(full_trials(options, dataset))
        whole, best = trained(full), best_trial(full)
        assert best is not None
        if not options.replay:
            halved = sweep(
                options, "asha", "nml", dataset, algorithm="random", scheduler={"kind": "asha"}, held_out_edges=0.1,
                epochs=FULL_EPOCHS, steps=FULL_STEPS,
            )  # fmt: skip
            _, cut, _ = read_sweep(halved)
            assert [trial.changes for trial in cut.values()] == [trial.changes for trial in full.values()]
            left = best_trial(cut)
            assert left is not None
            rows.append(row(dataset, "run", 3 / 8, 3, whole, trained(cut), best.value, left.value))
        for share, reduction in ((1 / 8, 2), (1 / 8, 4), (3 / 8, 2), (3 / 8, 3), (3 / 8, 4)):
            kept = replayed(spec, full, share, reduction)
            value = max(full[number].value or 0.0 for number, epochs in kept.items() if epochs == full[number].epoch)
            rows.append(row(dataset, "replayed", share, reduction, whole, sum(kept.values()), best.value, value))
    print("| data set | ASHA | grace | reduction | epochs without | with | saved | best val % without | with | lost |")
    print("|---|---|---|---|---|---|---|---|---|---|", *rows, sep="\n")


def row(dataset: str, name: str, share: float, reduction: float, whole: int, part: int, best: Any, left: Any) -> str:
    saved = f"{100 * (1 - part / whole):.0f} %"
    return (
        f"| {dataset} | {name} | {8 * share:g}/8 | {reduction:g} | {whole} | {part} | {saved} | "
        f"{100 * best:.2f} | {100 * left:.2f} | {100 * (best - left):.2f} |"
    )


def trained(trials: dict[int, TrialRecord]) -> int:
    return sum(trial.epoch for trial in trials.values())


def replayed(spec: SweepSpec, trials: dict[int, TrialRecord], share: float, reduction: float) -> dict[int, int]:
    """Epochs each trial would have got, one after the other, from the scheduler itself."""
    document = spec.model_dump(mode="json")
    grace = round(8 * share) * (spec.max_epochs // 8)
    document["scheduler"] = {"kind": "asha", "grace_epochs": grace, "reduction": reduction}
    halving, epochs = Halving(parse_sweep(document)), {}
    for number, trial in sorted(trials.items()):
        for report in trial.reports:
            epochs[number] = report.epoch
            if halving.judge(number, 0, report.epoch, report.value) == "stop" and report.epoch < trial.epoch:
                break
    return epochs


def figure(options: argparse.Namespace) -> None:
    """Accuracy against the KL coefficient and against T_M, all else as published but for the epochs; two seeds each."""
    for dataset in options.datasets:
        for preset, values in (("nml", [0.3, 3, 30, 300]), ("nml-official", [0.0, 0.01, 0.1, 1.0])):
            curve(options, dataset, preset, "method.reg.coefficient", values)
            curve(options, dataset, preset, "method.inner_steps", [1, 3, 5, 8])


def curve(options: argparse.Namespace, dataset: str, preset: str, path: str, values: list[Any]) -> None:
    short = path.rsplit(".", 1)[1]
    directory = sweep(
        options, f"{preset}-{short}", preset, dataset, space={path: {"kind": "grid", "values": values}}, starts=[],
        algorithm="grid", scheduler={"kind": "none"}, seeds=2, overrides=[f"optimiser.epochs={options.epochs}"],
    )  # fmt: skip
    trials = read_sweep(directory)[1].values()
    print(f"\n{dataset}, {preset}, {path}: two seeds\n| {short} | validation % | metric acts |\n|---|---|---|")
    for trial in sorted(trials, key=lambda trial: trial.changes[path]):
        acts = trial.reports[-1].figures.get("weight_active")
        print(f"| {trial.changes[path]} | {spread([100 * value for value in trial.values])} | {acts} |")


def overhead(directory: Path) -> float:
    """Wall-clock time of a sweep over the training seconds of its trials divided by how many ran at a time."""
    _, trials, lines = read_sweep(directory)
    concurrency = next(line["concurrency"] for line in lines if line["type"] == "start")
    return float(lines[-1]["elapsed"] / (sum(trial.seconds for trial in trials.values()) / concurrency))


def spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


if __name__ == "__main__":
    main()
