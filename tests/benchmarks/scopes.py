"""What sampling costs: accuracy of `batch` scope beside the exact scope, same epochs, same seeds, same settings.

    python tests/benchmarks/scopes.py --runs DIR [--datasets cora photo computers] [--seeds 0 1 2]

Runs are kept in DIR and resumed, so a second call prints what is there and trains what is missing. Preset `nml`; widths
and metric steps can be lowered alike for all scopes where the exact scope would take too long.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import trainer
from trainer.config import parse_spec
from trainer.files.documents import apply_overrides
from trainer.presets import preset_document

SCOPES = {
    "exact": ["sampling.negatives=graph"],
    "batch 512": ["sampling.negatives=batch", "sampling.batch_size=512"],
    "batch 2048": ["sampling.negatives=batch", "sampling.batch_size=2048"],
    "bank 512": ["sampling.negatives=bank", "sampling.batch_size=512"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--datasets", nargs="+", default=["cora", "photo", "computers"])
    parser.add_argument("--scopes", nargs="+", default=list(SCOPES)[:3], choices=list(SCOPES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--width", type=int, default=256, help="encoder.hidden, encoder.dim and method.metric.hidden")
    parser.add_argument("--inner-steps", type=int, default=2, help="method.inner_steps")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="more overrides, for all scopes")
    parser.add_argument("--tag", default="", help="name for runs with other overrides, kept beside the plain ones")
    options = parser.parse_args()
    print(f"preset nml, width {options.width}, T_M {options.inner_steps}, {' '.join(options.overrides)}")
    print("| data set | scope | test accuracy % | k-means FMI % | FN/TN distance % | N·m on FN / TN | encoder steps |")
    print("|---|---|---|---|---|---|---|")
    for dataset in options.datasets:
        for scope in options.scopes:
            print(row(dataset, scope, [train(dataset, scope, seed, options) for seed in options.seeds]), flush=True)


def train(dataset: str, scope: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    document = apply_overrides(
        preset_document("nml", dataset),
        [
            f"run.seed={seed}", "run.track=false", "run.diagnose_every=5", "evaluation.figures=false",
            f"encoder.hidden={options.width}", f"encoder.dim={options.width}", f"method.metric.hidden={options.width}",
            f"method.inner_steps={options.inner_steps}", *SCOPES[scope], *options.overrides,
        ],
    )  # fmt: skip
    name = f"{dataset}-{scope.replace(' ', '-')}-{seed}{options.tag and '-' + options.tag}"
    return dict(trainer.fit(parse_spec(document), options.runs / name, resume=True).metrics)


def row(dataset: str, scope: str, runs: list[dict[str, Any]]) -> str:
    def spread(values: list[float]) -> str:
        deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        return f"{statistics.mean(values):.2f}{deviation}"

    accuracy = spread([100 * run["eval"]["probe"]["test"] for run in runs])
    fmi = spread([100 * run["eval"]["clustering"]["fmi"]["mean"] for run in runs])
    ratio = spread([run["eval"]["pairs"]["distance_ratio"] for run in runs])
    weights = " / ".join(
        f"{statistics.mean([run['train'][key] for run in runs]):.3f}" for key in ("weight_fn", "weight_tn")
    )
    batch = runs[0]["plan"]["sampling"]["batch_size"]
    steps = runs[0]["epoch"] * (1 if batch is None else -(-runs[0]["nodes"] // batch))
    return f"| {dataset} | {scope} | {accuracy} | {fmi} | {ratio} | {weights} | {steps} |"


if __name__ == "__main__":
    main()
