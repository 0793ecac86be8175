"""`nml sweep`: what the options ask for, what is shown while a sweep runs, and what is told of one that ran."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from service.cli.spec_options import Asked
from service.cli.sweep_report import print_outcome
from service.cli.sweep_spec import assemble_sweep, shrink
from service.cli.sweep_table import Standing, head_line, line_of, render, time_left, watching
from trainer.config import parse_spec
from tuner.config import SweepSpec, parse_sweep
from tuner.journal import Journal

SPACE = {
    "method.temperature": {"kind": "uniform", "low": 0.1, "high": 1},
    "optimiser.epochs": {"kind": "choice", "values": [50, 100]},
}


def nml(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from service.cli import main; main()", "sweep", *arguments]
    environment = {**os.environ, "COLUMNS": "120"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def asked(*arguments: str) -> SweepSpec:
    return parse_sweep(json.loads(nml(*arguments, "--show-spec").stdout))


@pytest.fixture
def spec() -> SweepSpec:
    base = {"data": {"name": "photo"}, "optimiser": {"epochs": 50}, "run": {"track": False}}
    return parse_sweep({"base": base, "space": SPACE, "trials": 6})


@pytest.fixture
def made(tmp_path: Path, spec: SweepSpec) -> Path:
    """A sweep directory with a start, a better trial, one that was stopped, one that failed and one that runs."""
    journal = Journal.open(tmp_path / "sweep", spec)
    for event in events():
        journal.record(event.pop("type"), **event)
    journal.close()
    return tmp_path / "sweep"


def events(failed: str = "invalid: the loss is NaN,\nsee log.txt") -> list[dict]:
    found: list[dict] = [{"type": "start", "spec_hash": "x", "objective": "val_accuracy", "concurrency": 2}]
    endings = [("finished", 0.61), ("finished", 0.72), ("stopped", 0.79), ("failed", None), (None, 0.5)]
    for number, (state, value) in enumerate(endings):
        changes = {"method.temperature": 0.1 * (number + 1), "optimiser.epochs": 50 * (number % 2 + 1)}
        about = {"number": number, "origin": "search" if number else "start", "changes": changes}
        found += [{"type": "trial", **about}, {"type": "running", "number": number, "host": "h", "pid": 1}]
        if value is not None:
            found.append({"type": "report", "number": number, "run": 0, "epoch": 25, "value": value, "seconds": 3.0,
                          "figures": {"val_accuracy": value}, "decision": "continue"})  # fmt: skip
        if state is not None:
            error, epoch = (
                failed if state == "failed" else None,
                25 if state == "stopped" else changes["optimiser.epochs"],
            )
            found.append({"type": "done", "number": number, "state": state, "value": value, "epoch": epoch,
                          "values": [] if value is None else [value], "seconds": 6.0, "error": error})  # fmt: skip
    return found


# ---- what is asked for


def test_options_alone_make_a_sweep_of_the_preset_with_its_whole_space():
    spec = asked("--dataset", "photo", "--preset", "nml-official", "--trials", "5", "--objective", "link_auc",
                 "--algorithm", "random", "--scheduler", "none", "--seeds", "2", "--concurrency", "3", "--cpus", "2",
                 "--budget-minutes", "1.5", "--set", "run.seed=4", "--set", "encoder.dim=32")  # fmt: skip
    assert (spec.base.data.name, spec.base.preset, spec.base.run.seed, spec.base.encoder.dim) == (
        "photo", "nml-official", 4, 32,
    )  # fmt: skip
    assert spec.base.method.inner_steps == 5  # the paper's for photo
    assert (spec.trials, spec.objective, spec.algorithm, spec.scheduler.kind) == (5, "link_auc", "random", "none")
    assert (spec.seeds, spec.concurrency, spec.resources.cpus, spec.budget_minutes) == (2, 3, 2, 1.5)
    assert "method.temperature" in spec.space  # shown, to be edited


def test_a_file_is_the_sweep_and_options_after_it_override_its_fields(tmp_path: Path):
    file = tmp_path / "sweep.yaml"
    file.write_text("base: {method: {temperature: 0.4}, run: {seed: 3}}\ntrials: 7\nscheduler: {reduction: 3}\n")
    spec = asked(str(file), "--trials", "9", "--scheduler", "none", "--set", "run.seed=5")
    assert (spec.base.method.temperature, spec.base.run.seed, spec.trials) == (0.4, 5, 9)
    assert (spec.scheduler.kind, spec.scheduler.reduction) == ("none", 3)
    shown = tmp_path / "shown.json"
    shown.write_text(spec.model_dump_json())
    assert asked(str(shown)) == spec


def test_what_set_gives_a_value_is_not_searched():
    assert "optimiser.epochs" in asked().space
    spec = asked("--set", "optimiser.epochs=4", "--set", "method.name=nml")
    assert (spec.base.optimiser.epochs, spec.max_epochs) == (4, 4)
    assert set(spec.space) == set(asked().space) - {"optimiser.epochs"}
    section = asked("--set", "optimiser={epochs: 4, lr: 0.01}")
    assert set(section.space) == set(asked().space) - {"optimiser.epochs", "optimiser.lr"}


def test_what_the_base_of_a_file_gives_a_value_is_not_searched(tmp_path: Path):
    file = tmp_path / "sweep.yaml"
    file.write_text("base: {method: nml, optimiser: {epochs: 4}}\n")
    spec = asked(str(file), "--set", "method.temperature=0.4")
    assert set(spec.space) == set(asked().space) - {"optimiser.epochs", "method.temperature"}


def test_set_of_what_the_own_space_searches_is_an_error(tmp_path: Path):
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps({"base": {}, "space": SPACE}))
    for given in ("optimiser.epochs=4", "optimiser={epochs: 4}"):
        said = nml(str(file), "--set", given, "--show-spec", code=3).stderr
        assert "--set optimiser.epochs: the sweep's space searches optimiser.epochs" in said
        assert "starts" in said


def test_a_base_that_fixes_everything_leaves_nothing_to_search(tmp_path: Path):
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps({"base": parse_spec({}).model_dump(mode="json")}))
    assert "nothing is left to search" in nml(str(file), "--show-spec", code=3).stderr


def test_a_bare_resume_goes_on_with_the_spec_in_the_directory(made: Path, spec: SweepSpec):
    assert asked("--resume", "--out", str(made), "--budget-minutes", "5") == spec.model_copy(
        update={"budget_minutes": 5}
    )


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (["--objective", "beauty"], 3, "objective"),
        (["--set", "method.temperature=-1"], 3, "method.temperature"),
        (["--trials", "0"], 3, "trials"),
        (["missing.json"], 3, "missing.json"),
        (["{train}"], 3, "section `base`"),
        (["{sweep}", "--dataset", "cora"], 3, "--set, not --dataset"),
        (["--dataset", "atlantis"], 3, "data.name"),
        (["--no-such-option"], 2, "--no-such-option"),
        (["{sweep}", "results"], 2, "results"),
        (["results"], 2, "DIR"),
        (["results", "nowhere"], 3, "not a sweep directory"),
        (["results", "nowhere", "--format", "poem"], 3, "table, csv or json"),
    ],
)
def test_mistakes_get_a_sentence_and_the_right_exit_code(tmp_path: Path, arguments, code, says):
    (tmp_path / "train.json").write_text('{"run": {"seed": 1}}')
    (tmp_path / "sweep.json").write_text('{"base": {}}')
    names = {f"{{{name}}}": str(tmp_path / f"{name}.json") for name in ("train", "sweep")}
    assert says in nml(*(names.get(argument, argument) for argument in arguments), code=code).stderr


def test_help_tells_of_both_ways_to_call_it():
    text = nml("--help").stdout
    for words in ("sweep [OPTIONS] [SPEC] | results DIR", "--trials", "--smoke", "results", "6 cancelled"):
        assert words in text
    assert "--best-spec" in nml("results", "--help").stdout


def test_smoke_shrinks_whatever_was_asked_and_again_changes_nothing():
    asked_for = parse_sweep({
        "base": {"data": {"name": "cora"}}, "trials": 30, "seeds": 5, "starts": [{"optimiser.epochs": 100}],
        "space": {"optimiser.epochs": {"kind": "choice", "values": [50, 100, 200]},
                  "encoder.hidden": {"kind": "integer", "low": 128, "high": 512},
                  "method.temperature": SPACE["method.temperature"]},
    })  # fmt: skip
    small = shrink(asked_for)
    assert (small.trials, small.max_epochs, small.base.optimiser.epochs) == (4, 10, 10)
    assert small.base.data.name == "cora"
    assert max(small.base.encoder.hidden, small.base.encoder.dim, small.base.method.metric.hidden) == 64
    assert small.space["optimiser.epochs"].values == (2, 5, 10)
    assert (small.space["encoder.hidden"].low, small.space["encoder.hidden"].high) == (16, 64)
    assert small.space["method.temperature"] == asked_for.space["method.temperature"]
    assert shrink(small) == small


def test_smoke_without_a_spec_searches_digits_with_the_default_space():
    small = shrink(assemble_sweep(Asked(), {"trials": 2}))
    assert (small.base.data.name, small.trials, small.max_epochs) == ("digits", 2, 10)


# ---- what is shown while it runs


def screen(standing: Standing, width: int = 100, height: int = 30) -> list[str]:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)
    console.print(render(standing, console))
    return [line.rstrip() for line in console.file.getvalue().rstrip("\n").split("\n")]


def test_table_has_running_trials_first_then_the_best(spec: SweepSpec):
    standing = Standing(spec)
    for event in events():
        standing.take({**event, "elapsed": 80.0})
    trials, best, _ = standing.seen()
    assert head_line(standing, trials, best, elapsed=80) == (
        "val_accuracy: best 0.7200 (trial 1)  ·  4/6 done, 1 running  ·  elapsed 1:20  ·  about 0:40 left"
    )
    head, names, *rows = screen(standing)
    assert "4/6 done, 1 running" in head
    assert names.split() == ["trial", "state", "τ", "T_E", "epoch", "val_accuracy", "seconds"]
    assert [row.split()[:2] for row in rows] == [
        ["4", "running"], ["1", "finished"], ["0", "finished"], ["2", "stopped"], ["3", "failed"],
    ]  # fmt: skip
    assert rows[0].split()[2:] == ["0.5", "50", "25/50", "0.5000", "3"]
    assert "★" in rows[1]


def test_before_the_first_trial_the_wait_is_explained(spec: SweepSpec):
    said = head_line(Standing(spec), [], None, elapsed=65)
    assert said == "val_accuracy: loading the graph and starting Ray  ·  elapsed 1:05"
    assert len(screen(Standing(spec))) == 1


@pytest.mark.parametrize("height", [5, 8, 12, 40])
def test_table_never_is_higher_than_the_terminal(spec: SweepSpec, height):
    standing = Standing(spec.model_copy(update={"trials": 30}))
    for number in range(20):
        standing.take({"type": "trial", "number": number, "origin": "search", "changes": {}})
    lines = screen(standing, height=height)
    assert len(lines) <= height
    shown = sum(line.split()[1:2] == ["waiting"] for line in lines)
    assert shown == 20 or f"… and {20 - shown} more ({20 - shown} waiting)" in lines


def test_a_narrow_terminal_keeps_state_and_objective_and_names_what_it_left_out():
    standing = Standing(parse_sweep({"base": {}}))
    standing.take({"type": "trial", "number": 0, "origin": "start", "changes": {}})
    lines = screen(standing, width=60)
    assert all(len(line) <= 60 for line in lines)
    assert {"state", "epoch", "val_accuracy"} <= set(lines[1].split())
    assert "no room for" in lines[-1]
    assert "no room for" not in "".join(screen(standing, width=120))


def test_time_left_is_bounded_by_the_budget_and_not_guessed_too_early(spec: SweepSpec):
    standing = Standing(spec)
    assert time_left(standing, 1, 10) is None
    assert time_left(standing, 2, 10) == pytest.approx(20)
    hurried = Standing(spec.model_copy(update={"budget_minutes": 0.25}))
    assert time_left(hurried, 0, 10) == pytest.approx(5)
    assert time_left(hurried, 2, 10) == pytest.approx(5)


def test_on_a_terminal_the_table_is_live_and_failures_are_told(spec: SweepSpec):
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=20, color_system=None)
    with watching(Standing(spec), as_json=False, console=console) as show:
        for event in events():
            show(event)
    shown = console.file.getvalue()
    assert "trial 3 failed: invalid: the loss is NaN," in shown
    assert "4/6 done" in shown


def test_in_a_pipe_there_is_a_line_per_start_and_end(spec: SweepSpec):
    console = Console(file=io.StringIO(), width=200)
    with watching(Standing(spec), as_json=False, console=console) as show:
        for event in events():
            show(event)
    lines = console.file.getvalue().splitlines()
    assert "photo, 6 trials by val_accuracy" in lines[0]
    assert lines[1:5] == [
        "trial 0 runs: τ 0.1, T_E 50", "trial 0 finished: val_accuracy 0.6100 after epoch 50, 6 s, best so far",
        "trial 1 runs: τ 0.2, T_E 100", "trial 1 finished: val_accuracy 0.7200 after epoch 100, 6 s, best so far",
    ]  # fmt: skip
    assert lines[6] == "trial 2 stopped: val_accuracy 0.7900 after epoch 25, 6 s"
    assert lines[8] == "trial 3 failed: invalid: the loss is NaN,"
    assert len(lines) == 10


def test_a_trial_whose_process_died_is_told_as_tried_again(spec: SweepSpec):
    standing = Standing(spec)
    for event in events():
        standing.take(event)
    retry = {"type": "retry", "number": 4, "error": "its process died"}
    standing.take(retry)
    assert line_of(retry, standing) == "trial 4 is tried again: its process died"


def test_machines_get_every_event_as_it_is(spec: SweepSpec, capsys):
    with watching(Standing(spec), as_json=True) as show:
        for event in events():
            show(event)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == events()


# ---- what is told of one that ran


def test_results_show_the_best_beside_the_first_start_and_say_what_the_value_is(made: Path):
    text = nml("results", str(made), "--top", "2").stdout
    assert "2 finished, 1 stopped, 1 failed, 1 running. The first 2 by merit:" in text
    for line in ("best, trial 1", "first start, trial 0"):
        assert line in text
    assert next(line for line in text.splitlines() if line.startswith("val_accuracy ")).split() == [
        "val_accuracy", "0.7200", "0.6100",
    ]  # fmt: skip
    assert "0.7200 is a validation figure (accuracy on validation nodes) that chose these settings itself" in text
    assert "Test accuracy was not looked at" in text
    assert "trial 3 failed: invalid: the loss is NaN," in text
    assert f"nml sweep --resume --out {made}" in text  # it has no end yet


def test_results_of_a_finished_sweep_name_the_command_that_trains_the_best(made: Path, spec: SweepSpec):
    journal = Journal.open(made, spec)
    journal.record("end", state="succeeded", best=1, value=0.72)
    journal.close()
    text = nml("results", str(made)).stdout
    assert f"nml train {made / 'best.json'}" in text
    assert "--resume" not in text


def test_results_for_machines_are_whole_or_the_top(made: Path):
    table = list(csv.DictReader(io.StringIO(nml("results", str(made), "--format", "csv").stdout, newline="")))
    assert [row["number"] for row in table] == ["0", "1", "2", "3", "4"]
    assert table[3]["error"] == "invalid: the loss is NaN,\nsee log.txt"
    found = json.loads(nml("results", str(made), "--format", "json", "--top", "3").stdout)
    assert [row["number"] for row in found["trials"]] == [1, 0, 2]
    assert (found["best"], found["states"]["running"]) == (1, 1)


def test_best_spec_is_one_that_train_takes(made: Path):
    best = parse_spec(json.loads(nml("results", str(made), "--best-spec").stdout))
    assert (best.data.name, best.method.temperature, best.optimiser.epochs) == ("photo", 0.2, 100)


def test_a_sweep_without_a_finished_trial_says_so(tmp_path: Path, spec: SweepSpec):
    Journal.open(tmp_path / "new", spec).close()
    assert "no trials yet" in nml("results", str(tmp_path / "new")).stdout
    assert "no trial has finished yet" in nml("results", str(tmp_path / "new"), "--best-spec", code=3).stderr


def test_a_trial_cut_off_by_time_is_not_passed_off_as_finished(spec: SweepSpec):
    standing = Standing(spec)
    for event in [*events()[:1], *events()[-3:]]:
        standing.take(event)
    standing.take({"type": "done", "number": 4, "state": "ended", "value": None, "values": [], "epoch": 25,
                   "seconds": 3.0, "error": None})  # fmt: skip
    console = Console(file=io.StringIO(), width=200)
    print_outcome(console, spec, standing.trials, top=3)
    text = console.file.getvalue()
    assert "No trial trained to its end" in text
    assert "0.5000 (ended at epoch 25)" in text
