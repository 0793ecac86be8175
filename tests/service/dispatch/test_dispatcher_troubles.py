"""What goes wrong around a dispatcher: database, disk, machine, one job among others; each at its worst moment."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from service.dispatch.dispatcher import CLEANUP_RETRY_SECONDS, CLEANUP_SECONDS, Dispatcher
from service.dispatch.job_commands import JobCommands
from service.dispatch.local import LocalRunner
from service.store.errors import Unavailable
from tests.service.dispatch.conftest import curve, ended, events_of, running, submit, until
from tests.service.dispatch.standin_trainer import losses


def test_an_outage_of_the_database_loses_nothing(dispatching, store, settings, monkeypatch, go):
    """Every call of the store fails while the run comes to its end; the first of them had done its work by then."""
    job = submit(store, epochs=60, seed=9, at=5, until=go)
    dispatching()
    running(store, job.id, 5)
    others = ("held", "renew_all", "take_over", "claim", "finish", "requeue")
    away, failed = {"record"}, []

    def broken(name, afterwards):
        real = getattr(store.claims, name)

        def call(*arguments, **named):
            if name not in away:
                return real(*arguments, **named)
            if afterwards:
                real(*arguments, **named)
            away.update(others)
            failed.append(name)
            raise Unavailable("connection lost")

        return call

    for name in others:
        monkeypatch.setattr(store.claims, name, broken(name, afterwards=False))
    monkeypatch.setattr(store.claims, "record", broken("record", afterwards=True))
    go.touch()
    until(lambda: (settings.run_directory(job.id) / "metrics.json").exists() and len(failed) >= 5)
    assert failed[0] == "record"
    away.clear()
    done = ended(store, job.id)
    assert (done.state, done.attempt) == ("succeeded", 1)
    assert curve(store, job.id) == losses(9, 60)
    told = [(e.type, e.epoch, e.data.get("name")) for e in events_of(store, job.id) if e.type != "state"]
    assert len(told) == len(set(told))


def test_a_commit_of_which_nobody_knows_is_not_repeated(dispatching, store, monkeypatch):
    """Each fifth transaction is done, and then the connection breaks before it says so.

    Not each third: a step claims three times, and each time the same one would be lost.
    """
    count = [0]
    for name in ("record", "finish", "claim", "renew_all"):
        real = getattr(store.claims, name)

        def call(*arguments, real=real, **named):
            result = real(*arguments, **named)
            count[0] += 1
            if count[0] % 5 == 0:
                raise Unavailable("connection lost")
            return result

        monkeypatch.setattr(store.claims, name, call)
    job = submit(store, epochs=40, seed=9, seconds=0.02)
    dispatching()
    done = ended(store, job.id)
    assert done.state == "succeeded"
    assert curve(store, job.id) == losses(9, 40)
    told = [(e.type, e.epoch, e.data.get("name")) for e in events_of(store, job.id) if e.type != "state"]
    assert len(told) == len(set(told))


def test_trouble_with_one_job_does_not_touch_the_others(dispatching, store, monkeypatch):
    bad = submit(store, epochs=50, seconds=0.05)
    good = [submit(store, epochs=20, seed=seed) for seed in range(3)]
    real = JobCommands.write_spec

    def write_spec(self, job):
        if job.id == bad.id:
            raise ZeroDivisionError("a fault in the code")
        real(self, job)

    monkeypatch.setattr(JobCommands, "write_spec", write_spec)
    monkeypatch.setattr("service.dispatch.dispatcher.MAX_ERRORS", 2)
    dispatching()
    for seed, job in enumerate(good):
        assert ended(store, job.id).state == "succeeded"
        assert curve(store, job.id) == losses(seed, 20)
    done = ended(store, bad.id)
    assert (done.state, done.failure_kind) == ("failed", "infra")


def test_a_full_disk_fails_the_job_and_the_service_lives(dispatching, store, settings, small_disk):
    job = submit(store, epochs=20, fill=True)
    settings.runs.mkdir(parents=True)
    (settings.runs / job.id).symlink_to(small_disk)
    dispatching()
    done = ended(store, job.id)
    assert (done.state, done.failure_kind) == ("failed", "infra")
    assert "disk is full" in done.failure_message
    fine = submit(store, epochs=5)
    assert ended(store, fine.id).state == "succeeded"


def test_a_job_that_can_never_be_started_says_why_hinders_no_other_and_ends_at_its_deadline(
    dispatching, store, settings
):
    ahead = [0.0]
    stuck = submit(store, epochs=3, job={"deadline": time.time() + 3_600, "priority": 5})
    others = [submit(store, epochs=3, seed=seed) for seed in range(3)]
    settings.jobs.mkdir(parents=True)
    (settings.jobs / stuck.id).write_text("in the way")
    dispatching(clock=lambda: time.time() + ahead[0])
    assert [ended(store, job.id).state for job in others] == ["succeeded"] * 3

    def is_told_why():
        reasons = [event.data.get("reason", "") for event in events_of(store, stuck.id)]
        return any("cannot start the job" in reason for reason in reasons)

    until(is_told_why)
    ahead[0] = 4_000.0
    done = ended(store, stuck.id)
    assert (done.state, done.failure_kind, done.infra_retries) == ("failed", "deadline", 0)


def test_a_machine_that_can_start_nothing_for_a_while_spends_no_job_s_retries(store, settings, commands, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("service.dispatch.start_backoff.time", SimpleNamespace(monotonic=lambda: now[0]))

    def step():
        now[0] += 1.0  # beyond any pause
        dispatcher.step()

    class Exhausted(LocalRunner):
        starts, broken = 0, True

        def start(self, launch):
            self.starts += 1
            if self.broken:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            return super().start(launch)

    runner = Exhausted()
    dispatcher = Dispatcher(settings, store, runner, commands=commands)
    jobs = [submit(store, epochs=3, seed=seed) for seed in range(12)]
    dispatcher.step()
    assert runner.starts == 1  # the others were not even claimed
    until(lambda: step() or runner.starts >= 4)
    runner.broken = False
    until(lambda: step() or all(store.jobs.get(job.id).is_terminal for job in jobs))
    for seed, job in enumerate(jobs):
        done = store.jobs.get(job.id)
        assert (done.state, done.infra_retries, done.failure_kind) == ("succeeded", 0, None)
        assert curve(store, job.id) == losses(seed, 3)


def test_nothing_is_claimed_while_the_disk_is_nearly_full(store, settings, commands, caplog):
    full = settings.model_copy(update={"min_free_bytes": 10**18})
    job = submit(store, epochs=3)
    dispatcher = Dispatcher(full, store, LocalRunner(), commands=commands)
    for _ in range(3):
        dispatcher.step()
    assert store.jobs.get(job.id).attempt == 0
    assert caplog.text.count("starting no jobs") == 1


def test_an_error_of_any_kind_while_recording_loses_no_event(dispatching, store, monkeypatch):
    real, count = store.claims.record, [0]

    def record(claim, events=(), **updates):
        count[0] += bool(events)
        if events and count[0] % 2:
            raise ZeroDivisionError("a fault in the code")
        return real(claim, events, **updates)

    monkeypatch.setattr(store.claims, "record", record)
    job = submit(store, epochs=12, seed=3)
    dispatching()
    assert ended(store, job.id).state == "succeeded"
    assert curve(store, job.id) == losses(3, 12)


def test_leases_are_kept_while_one_job_takes_its_time(dispatching, store, settings, commands, monkeypatch, go):
    """The first dispatcher hangs for several leases over one job; others get nothing of it. Time is what we say."""
    jobs = [submit(store, epochs=60, seed=seed, until=go) for seed in range(2)]
    now, hanging, released = [time.time()], threading.Event(), threading.Event()
    monkeypatch.setattr("service.store.claims.now", lambda _: now[0])
    monkeypatch.setattr("service.dispatch.leases.time", SimpleNamespace(monotonic=lambda: now[0]))

    class Slow(LocalRunner):
        is_slow = False

        def poll(self, *given):
            if self.is_slow:
                hanging.set()
                released.wait()
            return super().poll(*given)

    runner = Slow()
    first = dispatching(runner=runner)
    for job in jobs:
        running(store, job.id, 2)
    runner.is_slow = True
    try:
        assert hanging.wait(120)
        for _ in range(6):
            now[0] += settings.lease_seconds / 2
            expected = {job.id: (first.owner, 1, now[0] + settings.lease_seconds) for job in jobs}
            until(lambda expected=expected: leases(store) == expected)
            other = Dispatcher(settings, store, LocalRunner(), commands=commands)
            other.step()
            assert other.attempts == {}
            assert leases(store) == expected
    finally:
        runner.is_slow = False
        released.set()
    go.touch()
    for seed, job in enumerate(jobs):
        assert ended(store, job.id).attempt == 1
        assert curve(store, job.id) == losses(seed, 60)


def leases(store):
    """Of each job that runs: who holds it, in which attempt, until when."""
    (found, _) = store.jobs.list(kind="train", states=["running"])
    return {job.id: (job.lease_owner, job.attempt, job.lease_expires) for job in found}


def test_a_job_that_uses_more_than_there_is_keeps_no_job_out_that_needs_none(dispatching, store, settings):
    large = submit(store, epochs=10_000, seconds=0.1, job={"memory_bytes": 10 * settings.memory_bytes})
    dispatching()
    running(store, large.id)
    small = submit(store, epochs=1, job={"memory_bytes": None})
    assert ended(store, small.id).state == "succeeded"
    assert store.jobs.get(large.id).state == "running"
    store.jobs.cancel(large.id)
    ended(store, large.id)


@pytest.mark.parametrize("failing", ["sweep_uploads", "sweep_discarded", "sweep_versions"])
@pytest.mark.parametrize("error", [Unavailable("away"), PermissionError("no")])
def test_a_sweep_that_fails_hinders_no_other_and_is_tried_again_soon(
    store, settings, commands, monkeypatch, failing, error
):
    swept: list[str] = []
    broken = [failing]

    def stand_in(name):
        def sweep(*_, **__):
            swept.append(name)
            if name in broken:
                raise error

        return sweep

    for name in ("sweep_uploads", "sweep_discarded", "sweep_versions"):
        monkeypatch.setattr(f"service.dispatch.dispatcher.{name}", stand_in(name))
    dispatcher = Dispatcher(settings, store, LocalRunner(), commands=commands)
    dispatcher._clean_up(0.0)
    assert set(swept) == {"sweep_uploads", "sweep_discarded", "sweep_versions"}
    swept.clear()
    dispatcher._clean_up(CLEANUP_RETRY_SECONDS - 1)
    assert swept == []
    broken.clear()
    dispatcher._clean_up(CLEANUP_RETRY_SECONDS)
    assert set(swept) == {failing}
    swept.clear()
    dispatcher._clean_up(CLEANUP_SECONDS - 1)
    assert swept == []
    dispatcher._clean_up(CLEANUP_RETRY_SECONDS + CLEANUP_SECONDS)
    assert set(swept) == {"sweep_uploads", "sweep_discarded", "sweep_versions"}
