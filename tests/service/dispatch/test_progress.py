"""What people see of a job's progress, from the events alone."""

from __future__ import annotations

import pytest

from service.dispatch.progress import RunProgress, SweepProgress


def told(progress, *events):
    for event in events:
        progress.update(event)
    return progress.document


def epochs(first, last, *, seconds):
    return [
        {
            "type": "epoch",
            "epoch": number,
            "time": 100 + number * seconds,
            "metrics": {"loss": 1 / number, "seconds": 9.0},
        }
        for number in range(first, last + 1)
    ]


def test_a_run_tells_how_far_it_is_and_how_long_it_takes():
    progress = RunProgress({"optimiser": {"epochs": 40}}, {}, {})
    shown = told(progress, {"type": "start", "epoch": 0}, *epochs(1, 10, seconds=0.5))
    assert shown["epoch"] == 10
    assert shown["epochs"] == 40
    assert shown["share"] == 0.25
    assert shown["epochs_per_second"] == pytest.approx(2.0)
    assert shown["eta_seconds"] == pytest.approx(15.0)
    assert shown["loss"] == 0.1
    assert progress.metrics == {"epoch": 10, "loss": 0.1, "seconds": 9.0}


def test_steps_of_a_long_epoch_move_it_too():
    progress = RunProgress({"optimiser": {"epochs": 2}}, {}, {})
    shown = told(progress, {"type": "step", "epoch": 2, "step": 5, "steps": 10, "loss": 0.7})
    assert (shown["epoch"], shown["share"], shown["loss"], shown["phase"]) == (1, 0.75, 0.7, "train")


def test_an_interruption_does_not_count_into_the_pace():
    progress = RunProgress({"optimiser": {"epochs": 40}}, {}, {})
    told(progress, {"type": "start", "epoch": 0}, *epochs(1, 10, seconds=0.5), {"type": "resume", "epoch": 8})
    assert progress.document["epoch"] == 8
    later = [{**event, "time": event["time"] + 5_000} for event in epochs(9, 12, seconds=0.5)]
    assert told(progress, *later)["epochs_per_second"] == pytest.approx(2.0)


def test_a_rewind_goes_back_to_an_earlier_epoch_and_its_metrics():
    progress = RunProgress({"optimiser": {"epochs": 40}}, {}, {})
    told(progress, {"type": "start", "epoch": 0}, *epochs(1, 10, seconds=0.5))
    progress.rewind(8, {"loss": 0.125})
    assert (progress.document["epoch"], progress.document["share"]) == (8, 0.2)
    assert progress.metrics == {"epoch": 8, "loss": 0.125}
    progress.rewind(0, {})
    assert (progress.document["epoch"], progress.metrics) == (0, {})


def test_phases_after_training_are_named_and_the_end_is_the_end():
    progress = RunProgress({"optimiser": {"epochs": 2}}, {}, {})
    told(progress, *epochs(1, 2, seconds=1), {"type": "phase", "name": "export", "epoch": 2})
    shown = told(progress, {"type": "exported", "epoch": 2, "done": 5, "total": 20})
    assert (shown["phase"], shown["done"], shown["total"], shown["eta_seconds"]) == ("export", 5, 20, None)
    shown = told(progress, {"type": "phase", "name": "evaluate", "epoch": 2})
    assert "total" not in shown
    assert told(progress, {"type": "end", "epoch": 2})["phase"] == "done"


@pytest.mark.parametrize("event", [{}, {"type": "epoch"}, {"type": "step", "epoch": "x"}, {"type": "new", "epoch": 1}])
def test_odd_events_do_no_harm(event):
    for progress in (RunProgress({}, {}, {}), SweepProgress({}, {}, {})):
        progress.update(event)


def test_a_sweep_counts_its_trials_and_knows_the_best():
    progress = SweepProgress({"trials": 4}, {}, {})
    done = {"values": [], "epoch": 5, "seconds": 1.0, "error": None}
    shown = told(
        progress,
        {"type": "start", "elapsed": 0.0},
        *[{"type": "trial", "number": n, "origin": "search", "changes": {}, "elapsed": 1.0} for n in range(3)],
        {"type": "running", "number": 0, "elapsed": 1.0}, {"type": "running", "number": 1, "elapsed": 1.0},
        {"type": "done", "number": 0, "state": "finished", "value": 0.5, "elapsed": 50.0, **done},
        {"type": "done", "number": 1, "state": "stopped", "value": 0.9, "elapsed": 60.0, **done},
        {"type": "running", "number": 2, "elapsed": 60.0},
    )  # fmt: skip
    assert (shown["trials"], shown["started"], shown["running"]) == (4, 3, 1)
    assert (shown["finished"], shown["stopped"], shown["best"], shown["best_value"]) == (1, 1, 0, 0.5)
    assert (shown["share"], shown["eta_seconds"]) == (0.5, 60.0)
    assert progress.metrics == {"best": 0, "value": 0.5}
    assert told(progress, {"type": "end", "elapsed": 99.0})["phase"] == "done"


def test_the_trials_of_a_sweep_are_counted_once_for_many_lines(monkeypatch):
    counted = []
    monkeypatch.setattr("service.dispatch.progress.best_trial", lambda trials: counted.append(len(trials)))
    progress = SweepProgress({"trials": 500}, {}, {})
    trials = [{"type": "trial", "number": n, "origin": "search", "changes": {}, "elapsed": 1.0} for n in range(500)]
    assert told(progress, *trials)["started"] == 500
    assert progress.metrics == {}
    assert counted == [500]
