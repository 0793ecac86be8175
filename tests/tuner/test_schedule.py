"""Who goes on: ASHA as Ray has it, with rungs that a restart does not forget."""

from __future__ import annotations

import random
from contextlib import closing

import pytest

from tests.tuner.sweeps import SPACE, small_sweep
from tuner.journal import Journal
from tuner.messages import packed
from tuner.schedule import Halving, JournalScheduler, settle_stopped

LONGER = {"kind": "choice", "values": [4, 8]}
CONTINUE, STOP = JournalScheduler.CONTINUE, JournalScheduler.STOP


class Trial:
    """What the scheduler looks at of Tune's trial."""

    def __init__(self, number):
        self.config = {"number": number}


@pytest.fixture
def journal(tmp_path):
    opened = Journal.open(tmp_path / "sweep", small_sweep(trials=50))
    opened.record("start")
    for number in range(50):
        opened.record("trial", number=number, origin="search", changes={})
    yield opened
    opened.close()


def reported(scheduler, number, epoch, value, run=0):
    message = packed("report", run=run, epoch=epoch, value=value, figures={}, seconds=float(epoch))
    return scheduler.on_trial_result(None, Trial(number), message)


def test_a_trial_below_the_median_of_its_rung_is_stopped_and_one_above_goes_on(journal):
    scheduler = JournalScheduler(journal)
    assert [reported(scheduler, number, 2, value) for number, value in enumerate([0.5, 0.9, 0.6, 0.8])] == [
        CONTINUE, CONTINUE, STOP, CONTINUE,
    ]  # fmt: skip
    assert [journal.trials[number].state for number in range(4)] == ["running", "running", "stopped", "running"]
    assert journal.trials[2].value == 0.6


def test_before_the_grace_is_over_and_without_a_scheduler_nobody_is_stopped(journal, tmp_path):
    assert all(reported(JournalScheduler(journal), number, 1, -number) == CONTINUE for number in range(10))
    never = Halving(small_sweep(scheduler={"kind": "none"}))
    assert all(never.judge(number, 0, 8, -number) == "continue" for number in range(10))


def test_a_trial_that_has_trained_to_its_end_is_not_stopped_there_but_raises_the_cut_for_others(tmp_path):
    spec = small_sweep({"optimiser": {"epochs": 4}}, trials=9, space={**SPACE, "optimiser.epochs": LONGER})
    with closing(Journal.open(tmp_path, spec)) as journal:
        for number, epochs in enumerate([8, 4, 8]):
            journal.record("trial", number=number, origin="search", changes={"optimiser.epochs": epochs})
        scheduler = JournalScheduler(journal)
        assert reported(scheduler, 0, 4, 0.9) == CONTINUE
        assert reported(scheduler, 1, 4, 0.1) == CONTINUE, "its last epoch"
        assert reported(scheduler, 2, 4, 0.1) == STOP


def test_only_the_first_run_of_a_trial_decides(journal):
    scheduler = JournalScheduler(journal)
    reported(scheduler, 0, 2, 1.0)
    assert reported(scheduler, 1, 2, 0.0, run=1) == CONTINUE


def test_after_a_restart_at_any_report_all_later_decisions_are_those_of_an_uninterrupted_scheduler(journal, tmp_path):
    chance = random.Random(7)
    said = [(number, epoch, chance.random()) for epoch in (2, 4, 8) for number in range(12)]
    chance.shuffle(said)
    said.sort(key=lambda item: item[1] + chance.random() * 3)  # trials are at different epochs, each in order
    uninterrupted = Halving(journal.spec)
    decisions = [uninterrupted.judge(number, 0, epoch, value) for number, epoch, value in said]
    assert {"stop", "continue"} == set(decisions)
    for cut in range(len(said)):
        past = [
            {"type": "report", "number": number, "run": 0, "epoch": epoch, "value": value}
            for number, epoch, value in said[:cut]
        ]
        restarted = Halving(journal.spec, past)
        assert [restarted.judge(number, 0, epoch, value) for number, epoch, value in said[cut:]] == decisions[cut:]


def test_a_repeated_report_gets_the_old_answer_and_is_not_written_twice(journal):
    scheduler = JournalScheduler(journal)
    assert reported(scheduler, 0, 2, 0.3) == CONTINUE
    reported(scheduler, 1, 2, 0.9)
    assert reported(scheduler, 0, 2, 0.3) == CONTINUE, "the cut is now above it, but it was let through before"
    assert len(journal.trials[0].reports) == 1


def test_a_decision_is_on_disk_before_ray_hears_of_it(journal, monkeypatch):
    scheduler = JournalScheduler(journal)
    reported(scheduler, 0, 2, 0.9)
    answers, record = [], journal.record

    def recording(kind, **fields):
        event = record(kind, **fields)
        answers.append((journal.path / "events.jsonl").read_text())
        return event

    monkeypatch.setattr(journal, "record", recording)
    assert reported(scheduler, 1, 2, 0.1) == STOP
    assert '"decision": "stop"' in answers[0]
    assert '"state": "stopped"' in answers[1]


def test_final_words_close_a_trial_with_the_mean_of_its_runs_and_whatever_follows_is_not_heard(journal):
    scheduler = JournalScheduler(journal)
    words = packed("final", state="finished", values=[0.5, 0.7], epoch=8, seconds=3.0, error=None)
    scheduler.on_trial_result(None, Trial(0), words)
    assert (journal.trials[0].state, journal.trials[0].value) == ("finished", 0.6)
    assert reported(scheduler, 0, 8, 0.1) == STOP
    assert journal.trials[0].value == 0.6


def test_a_trial_told_to_stop_just_before_a_kill_is_closed_with_what_it_said(journal):
    journal.record(
        "report", number=0, run=0, epoch=4, value=0.2, figures={}, seconds=1.0, decision="stop"
    )  # and no "done"
    settle_stopped(journal, journal.trials[0])
    trial = journal.trials[0]
    assert (trial.state, trial.value, trial.epoch) == ("stopped", 0.2, 4)
