"""Jobs from the queue to their end, with real processes of the stand-in trainer."""

from __future__ import annotations

import signal
import time

import pytest

from service.dispatch.dispatcher import IMPORTS, PUBLISHING, TRAINING, Dispatcher
from service.dispatch.local import LocalRunner
from tests.service.dispatch.conftest import curve, ended, events_of, processes_of, running, submit, until
from tests.service.dispatch.standin_trainer import losses
from trainer.files.journal import read_journal


def states(store, job_id):
    return [event.data["state"] for event in events_of(store, job_id) if event.type == "state"]


def test_many_jobs_each_succeed_once_with_their_own_curve(dispatching, store):
    jobs = [submit(store, epochs=15, seed=seed) for seed in range(8)]
    dispatching()
    for seed, job in enumerate(jobs):
        done = ended(store, job.id)
        assert (done.state, done.attempt, done.failure_kind) == ("succeeded", 1, None)
        assert curve(store, job.id) == losses(seed, 15)
        assert states(store, job.id) == ["queued", "running", "succeeded"]
        assert done.result is not None
        assert done.result["metrics"]["train"]["loss"] == losses(seed, 15)[-1]
        assert (done.result["figures"], done.result["embeddings"]) == (["loss.png"], False)
        assert (done.progress["phase"], done.progress["epoch"], done.progress["share"]) == ("done", 15, 1.0)
        assert done.metrics["loss"] == losses(seed, 15)[-1]


def most_at_a_time(store, jobs):
    """How many ran together at most, by when each was claimed and when its end was recorded."""
    done = [ended(store, job.id) for job in jobs]
    assert [job.state for job in done] == ["succeeded"] * len(jobs)
    return max(sum(one.started <= job.started < one.ended for one in done) for job in done)


def held_at(store, jobs, epoch):
    """Those that have come to this epoch, where they wait."""
    (found, _) = store.jobs.list(kind="train", states=["running"])
    return {job.id for job in jobs} & {job.id for job in found if job.progress.get("epoch") == epoch}


def test_no_more_run_at_a_time_than_there_are_slots(dispatching, store, settings, go):
    jobs = [submit(store, epochs=6, seconds=0.05, until=go) for _ in range(6)]
    dispatching(settings=settings.model_copy(update={"concurrency": 2}))
    until(lambda: len(held_at(store, jobs, 2)) == 2)  # all that there is room for
    go.touch()
    assert most_at_a_time(store, jobs) == 2


def test_no_more_run_at_a_time_than_memory_allows(dispatching, store, go):
    jobs = [submit(store, epochs=6, seconds=0.05, until=go, job={"memory_bytes": 5 * 10**9}) for _ in range(3)]
    dispatching()  # of 8 GB
    until(lambda: held_at(store, jobs, 2))
    go.touch()
    assert most_at_a_time(store, jobs) == 1


def test_short_jobs_get_a_place_before_training_takes_the_memory(store, settings, commands, monkeypatch):
    """Else uploads would wait until all training that is queued is done."""
    asked = []
    real = store.claims.claim
    monkeypatch.setattr(store.claims, "claim", lambda *given, **how: asked.append(how["kinds"]) or real(*given, **how))
    Dispatcher(settings, store, LocalRunner(), commands=commands).step()
    assert asked == [PUBLISHING, IMPORTS, TRAINING]


def test_higher_priority_goes_first(dispatching, store, settings):
    low = submit(store, epochs=2, job={"priority": -5})
    high = submit(store, epochs=2, job={"priority": 5})
    dispatching(settings=settings.model_copy(update={"concurrency": 1}))
    assert ended(store, high.id).started < ended(store, low.id).started


@pytest.mark.parametrize(
    "number, retries", [(signal.SIGKILL, 3), (signal.SIGSEGV, 1), (signal.SIGTERM, 1)], ids=["kill", "segv", "term"]
)
def test_a_killed_trainer_resumes_and_the_curve_is_that_of_an_uninterrupted_run(
    dispatching, store, settings, number, retries
):
    job = submit(store, epochs=20, seed=5, signal=int(number), at=8, attempts=retries)
    dispatching()
    done = ended(store, job.id)
    assert (done.state, done.attempt, done.infra_retries) == ("succeeded", retries + 1, retries)
    assert curve(store, job.id) == losses(5, 20)
    events = events_of(store, job.id)
    types = [event.type for event in events]
    assert (types.count("start"), types.count("resume")) == (1, retries)
    taken_back = 0 if number == signal.SIGTERM else retries  # asked to end, it leaves a checkpoint; else 6 is the last
    assert [event.data["epoch"] for event in events if event.type == "rewind"] == [6] * taken_back
    assert types.count("epoch") == 20 + 2 * taken_back
    assert [event.data for event in events if event.type != "state"] == read_journal(
        settings.run_directory(job.id) / "events.jsonl"
    )


def test_retries_come_to_an_end(dispatching, store, settings):
    job = submit(store, epochs=5, exit=5, message="no route to host")
    dispatching()
    done = ended(store, job.id)
    assert (done.state, done.failure_kind, done.infra_retries) == ("failed", "infra", settings.infra_retries)
    assert done.attempt == settings.infra_retries + 1
    assert done.failure_message.startswith("no route to host")


def test_invalid_fails_at_once_with_its_own_words(dispatching, store):
    job = submit(store, exit=3, message="method.temperature: lower it")
    dispatching()
    done = ended(store, job.id)
    assert (done.state, done.failure_kind, done.attempt) == ("failed", "invalid", 1)
    assert done.failure_message == "method.temperature: lower it"


def test_out_of_memory_goes_on_with_a_smaller_plan_and_tells_the_new_numbers(dispatching, store):
    job = submit(store, epochs=12, seed=1, exit=4, at=5, attempts=1)
    dispatching()
    done = ended(store, job.id)
    assert (done.state, done.oom_retries, done.infra_retries) == ("succeeded", 1, 0)
    assert curve(store, job.id) == losses(1, 12, shrunk_from=4, shrunk=1)  # the checkpoint was of epoch 3
    rewinds = [event for event in events_of(store, job.id) if event.type == "rewind"]
    assert [event.data["epoch"] for event in rewinds] == [3]


def test_memory_beyond_the_limit_is_an_oom_not_the_end_of_the_machine(dispatching, store, settings):
    job = submit(store, epochs=4, eat=3_000, job={"memory_bytes": 100_000_000})
    dispatching()
    done = ended(store, job.id)
    assert (done.state, done.failure_kind, done.oom_retries) == ("failed", "oom", settings.oom_retries)


def test_cancel_ends_a_run_after_a_checkpoint(dispatching, store, settings):
    job = submit(store, epochs=10_000, seconds=0.02)
    dispatching()
    running(store, job.id, 2)
    store.jobs.cancel(job.id)
    done = ended(store, job.id)
    assert (done.state, done.failure_kind, done.attempt) == ("cancelled", None, 1)
    last = [event for event in events_of(store, job.id) if event.type == "cancelled"]
    assert len(last) == 1
    assert not processes_of(settings.home)


def test_cancel_ends_a_run_that_does_not_listen_and_all_its_family(dispatching, store, settings):
    job = submit(store, epochs=10_000, seconds=0.02, deaf=True, family=True)
    quick = settings.model_copy(update={"stop_grace_seconds": 1.0})
    dispatching(settings=quick)
    running(store, job.id, 3)
    assert len(processes_of(settings.home)) == 4
    store.jobs.cancel(job.id)
    assert ended(store, job.id).state == "cancelled"
    assert not processes_of(settings.home)


def test_success_in_the_last_moment_stays_success(dispatching, store, settings, go):
    job = submit(store, epochs=8, deaf=True, at=7, until=go)
    dispatcher = dispatching(settings=settings.model_copy(update={"stop_grace_seconds": 120.0}))
    running(store, job.id, 7)
    assert store.jobs.cancel(job.id).state == "cancelling"
    until(lambda: dispatcher.attempts[job.id].job.state == "cancelling")
    go.touch()
    assert ended(store, job.id).state == "succeeded"


def test_a_deadline_ends_the_run(dispatching, store):
    ahead = [0.0]
    job = submit(store, epochs=10_000, seconds=0.02, job={"deadline": time.time() + 3_600})
    dispatching(clock=lambda: time.time() + ahead[0])
    running(store, job.id)
    ahead[0] = 4_000.0
    done = ended(store, job.id)
    assert (done.state, done.failure_kind) == ("failed", "deadline")
    assert "deadline" in done.failure_message
    assert done.progress["epoch"] > 0


def test_a_job_whose_turn_comes_after_its_deadline_is_not_started(dispatching, store, settings):
    job = submit(store, job={"deadline": time.time() - 1})
    dispatching()
    done = ended(store, job.id)
    assert (done.state, done.failure_kind) == ("failed", "deadline")
    assert not settings.run_directory(job.id).exists()


def test_the_mlflow_run_and_the_trackers_trouble_are_told(dispatching, store, settings, go):
    job = submit(store, epochs=5, tracked=True, until=go)
    dispatching()
    until(lambda: store.jobs.get(job.id).mlflow_run_id == "abc123")
    note = settings.run_directory(job.id) / "tracking.json"
    note.write_text(note.read_text().replace("}", ', "error": "no answer", "status": "FINISHED"}'))
    go.touch()
    done = ended(store, job.id)
    assert (done.state, done.tracker_error) == ("succeeded", "no answer")
