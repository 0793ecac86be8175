"""What is written of a sweep: the best trial by rule, rows that stay rectangular, a spec that `nml train` takes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from trainer.config import parse_spec
from tuner.config import SweepSpec, parse_sweep, sweep_hash
from tuner.journal import Report, TrialRecord
from tuner.results import as_csv, best_trial, chosen_spec, labels, ranked, rows, short_names, shown, write_results

SPACE = {
    "method.temperature": {"kind": "uniform", "low": 0.1, "high": 1},
    "augment.edge_drop": {"kind": "choice", "values": [[0.2, 0.2], [0.4, 0.4]]},
}


def sweep(**fields) -> SweepSpec:
    return parse_sweep({"base": {"optimiser": {"epochs": 40}, "run": {"seed": 7}}, "space": SPACE, **fields})


def trial(number: int, state: str = "finished", value: float | None = None, **fields) -> TrialRecord:
    changes = {"method.temperature": 0.1 + number / 10, "augment.edge_drop": [0.2, 0.2]}
    return TrialRecord(number, "search", changes, state=state, value=value, **fields)


def report(epoch: int, value: float, run: int = 0, **figures: float) -> Report:
    return Report(run, epoch, value, figures, "continue")


def known(*trials: TrialRecord) -> dict[int, TrialRecord]:
    return {record.number: record for record in trials}


def test_best_is_the_earliest_of_the_highest_finished_trials():
    trials = known(trial(3, value=0.8), trial(1, value=0.7), trial(2, value=0.8), trial(4, "stopped", 0.9))
    assert best_trial(trials) is trials[2]


@pytest.mark.parametrize("state", ["stopped", "failed", "running", "waiting"])
def test_trials_that_did_not_train_to_their_end_are_not_chosen(state):
    trials = known(trial(0, state, 0.9, reports=[report(5, 0.9)]))
    assert best_trial(trials) is None
    assert chosen_spec(sweep(), trials) is None


def test_a_trial_cut_off_by_time_is_chosen_only_if_none_finished_and_trains_as_long_as_it_had():
    cut = trial(0, "ended", reports=[report(10, 0.5), report(20, 0.9)], epoch=20)
    silent = trial(1, "ended")
    trials = known(cut, silent)
    assert best_trial(trials) is cut
    chosen = chosen_spec(sweep(), trials)
    assert chosen is not None
    assert (chosen.optimiser.epochs, chosen.method.temperature) == (20, 0.1)
    assert best_trial(known(cut, trial(2, value=0.1))).number == 2


def test_a_cut_off_second_run_does_not_shorten_what_the_first_trained():
    cut = trial(0, "ended", reports=[report(20, 0.6), report(40, 0.7), report(20, 0.2, run=1)], epoch=20)
    assert chosen_spec(sweep(seeds=2), known(cut)).optimiser.epochs == 40


def test_rows_are_by_number_and_have_the_same_columns_in_every_state():
    trials = known(
        trial(2, "failed", error="invalid: NaN", reports=[report(10, 0.4, val_accuracy=0.4)]),
        trial(0, value=0.75, values=[0.7, 0.8], epoch=40, seconds=3.5, reports=[
            report(40, 0.7, val_accuracy=0.7, seconds=0.1), report(40, 0.8, run=1, val_accuracy=0.8, seconds=0.3),
        ]),
        TrialRecord(1, "start", {}),
    )  # fmt: skip
    found = rows(sweep(seeds=2), trials)
    assert [row["number"] for row in found] == [0, 1, 2]
    assert len({tuple(row) for row in found}) == 1
    first, untouched, failed = found
    assert (first["value_seed_7"], first["value_seed_8"]) == (0.7, 0.8)
    assert first["val_accuracy"] == pytest.approx(0.75)  # the mean over runs, as the value is
    assert first["seconds"] == 3.5
    assert first["figures.seconds"] == pytest.approx(0.2)
    assert untouched["method.temperature"] == 0.5  # what it leaves out is the base's
    assert (failed["value"], failed["error"], failed["val_accuracy"]) == (None, "invalid: NaN", 0.4)


def test_csv_gives_back_errors_with_line_breaks_and_lists():
    error = 'infra: died,\nsaying "no"\r\n and more'
    text = as_csv(rows(sweep(), known(trial(0, "failed", error=error), trial(1, value=0.5))))
    table = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["error"] for row in table] == [error, ""]
    assert json.loads(table[1]["augment.edge_drop"]) == [0.2, 0.2]
    assert float(table[1]["value"]) == 0.5


def test_files_tell_protocol_states_and_best_and_the_best_can_be_trained(tmp_path: Path):
    spec = sweep(objective="link_auc", seeds=2)
    trials = known(trial(0, value=0.5), trial(1, value=0.75), trial(2, "failed", error="x"))
    write_results(tmp_path, spec, trials)
    found = json.loads((tmp_path / "results.json").read_text())
    assert (found["objective"], found["sweep"], found["best"]) == ("link_auc", sweep_hash(spec), 1)
    assert found["states"] == {"finished": 2, "failed": 1}
    assert (found["split_seed"], found["seeds"], found["held_out_edges"]) == (7, [7, 8], 0.1)
    assert "split seed 7; mean over seeds 7, 8; 10 % of edges held out" in found["protocol"]
    best = parse_spec(json.loads((tmp_path / "best.json").read_text()))
    assert best.method.temperature == pytest.approx(0.2)
    assert best.data.held_out_edges == 0  # trains on all edges
    assert best.evaluation.split_seed == 7  # and is judged on the split that chose it
    assert best.run.export
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"results.csv", "results.json", "best.json"}


@pytest.mark.parametrize("trials", [{}, known(trial(0, "failed", error="x"))])
def test_without_a_best_trial_there_is_no_best_spec(tmp_path: Path, trials):
    write_results(tmp_path, sweep(), trials)
    assert not (tmp_path / "best.json").exists()
    assert json.loads((tmp_path / "results.json").read_text())["best"] is None


def test_ranking_puts_finished_trials_first_and_failed_ones_last():
    trials = [
        trial(0, "failed"),
        trial(1, "stopped", 0.9),
        trial(2, value=0.5),
        trial(3, value=0.6),
        trial(4, "running"),
    ]
    assert [record.number for record in ranked(trials)] == [3, 2, 1, 4, 0]


def test_fields_are_named_as_in_the_paper_and_in_the_unit_of_the_base():
    assert list(labels(parse_sweep({"base": {}})).values()) == ["a", "T_M", "τ", "T_E", "lr", "weight decay"]
    alpha = {"method": {"reg": {"scale": "n_minus_1", "coefficient": 0.1}}}
    assert labels(parse_sweep({"base": alpha}))["method.reg.coefficient"] == "α"


def test_short_names_differ_even_where_one_path_ends_in_another():
    paths = ["encoder.hidden", "method.metric.hidden", "a.b", "c.a.b", "optimiser.lr"]
    assert short_names(paths) == {
        "encoder.hidden": "encoder.hidden", "method.metric.hidden": "metric.hidden", "a.b": "a.b", "c.a.b": "c.a.b",
        "optimiser.lr": "lr",
    }  # fmt: skip


@pytest.mark.parametrize(
    "value, text",
    [(5e-4, "5e-4"), (0.00123456, "1.23e-3"), (0.0, "0"), (0.25, "0.25"), (3, "3"), (True, "true"), (None, "–"),
     ([0.4, 1e-4], "0.4, 1e-4"), ("uniform", "uniform"), (100.0, "100")],
)  # fmt: skip
def test_values_are_shown_short(value, text):
    assert shown(value) == text
