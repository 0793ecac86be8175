"""Trials that die: tried again, given up, or kept for later where others would meet the same."""

from __future__ import annotations

import time
from contextlib import closing
from types import SimpleNamespace

import pytest
import ray
from ray.tune.experiment import Trial

from tests.tuner.sweeps import small_sweep
from tuner.journal import Journal
from tuner.messages import packed
from tuner.schedule import JournalScheduler
from tuner.watch import DIED, EndOfSweep, Watch, ended_for_memory


class Searcher:
    """Remembers what it is told."""

    def __init__(self):
        self.told = []

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.told.append((trial_id, error))


def tunes(number, status=Trial.RUNNING, actor=None):
    """What Watch looks at of Tune's trial."""
    return SimpleNamespace(
        trial_id=f"tune-{number}", config={"number": number}, status=status,
        temporary_state=SimpleNamespace(ray_actor=actor),
    )  # fmt: skip


@pytest.fixture
def journal(tmp_path):
    with closing(Journal.open(tmp_path / "sweep", small_sweep(retries=1, budget_minutes=60))) as opened:
        opened.record("start")
        for number in range(3):
            opened.record("trial", number=number, origin="search", changes={})
            opened.record("running", number=number, host="here", pid=1)
        yield opened


@pytest.fixture
def watch(journal):
    return Watch(journal, JournalScheduler(journal), Searcher())


def test_a_trial_that_dies_is_tried_once_more_and_then_given_up(journal, watch):
    watch.on_trial_error(0, [], tunes(0))
    assert (journal.trials[0].state, journal.trials[0].retries) == ("waiting", 1)
    journal.record("running", number=0, host="here", pid=2)
    watch.on_trial_error(0, [], tunes(0))
    assert (journal.trials[0].state, journal.trials[0].error) == ("failed", DIED)
    assert watch.trouble is None


def test_trouble_that_may_pass_ends_the_sweep_and_leaves_the_trial_to_be_run(journal, watch):
    end = EndOfSweep(journal, lambda: False, watch)
    for _ in range(2):
        watch._scheduler.on_trial_result(None, tunes(0), packed("failing", error="infra: the disk is full"))
        assert not end.stop_all()
        watch.on_trial_error(0, [], tunes(0))
    assert not journal.trials[0].is_final
    assert "the disk is full" in watch.trouble
    assert end.stop_all()


def test_a_trial_that_tune_dropped_without_a_word_is_tried_again_and_its_place_is_free(journal, watch):
    dropped = tunes(1, Trial.ERROR)
    watch.on_step_begin(0, [dropped])
    watch.on_step_begin(1, [dropped])
    assert (journal.trials[1].state, journal.trials[1].retries) == ("waiting", 1)
    assert watch._searcher.told == [("tune-1", True)]


def test_a_silent_trial_is_ended_also_while_its_process_is_prepared_and_is_not_tried_again(journal, watch, monkeypatch):
    killed = []
    monkeypatch.setattr(ray, "kill", killed.append)
    for trial in (tunes(0, Trial.RUNNING, "actor-0"), tunes(1, Trial.PENDING, "actor-1")):
        watch.on_step_begin(0, [trial])
        assert killed == []
        watch._scheduler.heard[trial.config["number"]] = time.monotonic() - 3_601
        watch.on_step_begin(0, [trial])
        watch.on_step_begin(0, [trial])
        assert killed == [trial.temporary_state.ray_actor]
        killed.clear()
        watch.on_trial_error(0, [], trial)
        record = journal.trials[trial.config["number"]]
        assert record.state == "failed"
        assert "said nothing for 60 minutes" in record.error


def test_a_process_that_takes_long_to_start_is_not_silent_yet(tmp_path, monkeypatch):
    killed = []
    monkeypatch.setattr(ray, "kill", killed.append)
    with closing(Journal.open(tmp_path / "sweep", small_sweep(retries=0, silence_minutes=0.5))) as journal:
        watch = Watch(journal, JournalScheduler(journal), Searcher())
        slow, quick = tunes(0, Trial.PENDING, "slow"), tunes(1, Trial.PENDING, "quick")
        for trial in (slow, quick):
            journal.record("trial", number=trial.config["number"], origin="search", changes={})
            watch.on_trial_start(0, [], trial)
        watch._scheduler.on_trial_result(None, quick, packed("running", host="here", pid=1))
        for number in range(2):
            watch._scheduler.heard[number] = time.monotonic() - 300
        watch.on_step_begin(0, [slow, quick])
        assert killed == ["quick"], "that one has said something, and then nothing for more than half a minute"
        watch._scheduler.heard[0] = time.monotonic() - 601
        watch.on_step_begin(0, [slow, quick])
        assert killed == ["quick", "slow"]
        for trial in (slow, quick):
            watch.on_trial_error(0, [], trial)
        assert "said nothing for 10 minutes" in journal.trials[0].error
        assert "said nothing for 0.5 minutes" in journal.trials[1].error


def test_when_tune_gives_up_since_ray_freed_memory_all_that_ran_is_tried_again(journal, watch):
    with pytest.raises(RuntimeError) as given_up:
        raise RuntimeError("Caught unexpected exception") from ray.exceptions.OutOfMemoryError("worker killed")
    assert ended_for_memory(given_up.value)
    assert not ended_for_memory(RuntimeError("something else"))
    watch.lost_all("its node ran out of memory")
    assert [journal.trials[number].state for number in range(3)] == ["waiting"] * 3
