"""The clock is set, ahead or back, while jobs wait and run: nothing waits for hours, nothing is lost or done twice."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from service.dispatch.dispatcher import Dispatcher
from service.dispatch.leases import LeaseWatch
from service.dispatch.local import LocalRunner
from service.dispatch.steady_clock import BELIEVED_SECONDS, SteadyClock
from service.embeddings.retention import sweep_versions
from service.store import claims, dispatchers, jobs, records
from service.store.records import Claim, new_id
from tests.service.dispatch.conftest import ended, submit, until

HOUR = 3_600.0
OURS, THEIRS = "here", "elsewhere"


@dataclass
class Clock:
    """A machine's clock, which someone sets, and the one that nobody can set."""

    ahead: float = 0.0
    passed: float = 0.0

    def wall(self) -> float:
        return time.time() + self.ahead + self.passed

    def monotonic(self) -> float:
        return self.passed


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """The clock of the store (SQLite: the machine's) and of new ids."""
    made = Clock()
    for module in (claims, dispatchers, jobs):
        monkeypatch.setattr(module, "now", lambda connection: made.wall())
    monkeypatch.setattr(records.time, "time", lambda real=time.time: real() + made.ahead + made.passed)
    return made


def claim(store, owner: str, host: str, lease: float = 15.0):
    job = store.claims.claim(owner, kinds=["train"], lease_seconds=lease, longest_pause=600)
    assert job is not None
    return store.claims.record(Claim.on(job), runner={"kind": "local", "host": host, "pid": 1, "started": 1})


def take_over(store, watch: LeaseWatch) -> list[str]:
    taken = store.claims.take_over(
        "new", lease_seconds=15, host=OURS, foreign_after=900, unchanged_for=watch.unchanged_for
    )
    return [job.id for job in taken]


def test_a_job_queued_before_the_clock_was_put_back_does_not_wait_for_that_hour(store, clock):
    job = submit(store)
    clock.ahead = -HOUR
    assert store.claims.claim("one", kinds=["train"], lease_seconds=15) is None  # as it was
    assert store.claims.claim("one", kinds=["train"], lease_seconds=15, longest_pause=600).id == job.id


def test_a_retry_still_waits_for_its_pause(store, clock):
    submit(store)
    store.claims.requeue(Claim.on(claim(store, "one", OURS)), delay=500, reason="x", infra_retries=1, oom_retries=0)
    assert store.claims.claim("one", kinds=["train"], lease_seconds=15, longest_pause=600) is None
    clock.passed = 501
    assert store.claims.claim("one", kinds=["train"], lease_seconds=15, longest_pause=600) is not None


@pytest.mark.parametrize("host, seconds", [(OURS, 30), (THEIRS, 915)])
def test_a_lease_that_nobody_renews_ends_although_the_clock_was_put_back(store, clock, host, seconds):
    submit(store)
    job, watch = claim(store, "dead", host), LeaseWatch(clock.monotonic)
    clock.ahead = -HOUR
    assert take_over(store, watch) == []
    clock.passed = seconds - 1
    assert take_over(store, watch) == []
    clock.passed = seconds
    assert take_over(store, watch) == [job.id]


def test_a_clock_put_ahead_takes_no_job_from_a_living_dispatcher_on_another_host(store, clock):
    """We could not see its process, take it for dead and run the job a second time."""
    submit(store)
    claim(store, "alive", THEIRS)
    watch = LeaseWatch(clock.monotonic)
    clock.ahead = HOUR
    for _ in range(10):
        assert take_over(store, watch) == []
        clock.passed += 5
        store.claims.renew_all("alive", 15)
    assert take_over(store, watch) == []


def test_a_lease_that_was_over_long_ago_is_taken_over_once_it_was_watched(store, clock):
    submit(store)
    job, watch = claim(store, "dead", THEIRS), LeaseWatch(clock.monotonic)
    clock.passed = HOUR
    assert take_over(store, watch) == []
    clock.passed += 15
    assert take_over(store, watch) == [job.id]


def test_a_dead_dispatcher_does_not_seem_alive_after_the_clock_was_put_back(store, clock):
    store.dispatchers.beat("dead", host=OURS, pid=1, info={})
    assert len(store.dispatchers.alive(15)) == 1
    clock.ahead = -HOUR
    assert store.dispatchers.alive(15) == []


def test_later_jobs_have_later_ids_although_the_clock_was_put_back(store, clock):
    """`latest` follows the newest version by its id, and pages begin with the newest."""
    first = submit(store)
    clock.ahead = -HOUR
    later = [submit(store).id for _ in range(3)]
    assert [first.id, *later] == sorted([first.id, *later])
    assert new_id() < first.id  # what would have been


def test_the_steady_clock_ignores_a_jump_and_believes_it_after_a_day():
    clock = Clock()
    begun = clock.wall()
    steady = SteadyClock(clock.wall, clock.monotonic)
    for ahead in (HOUR, -HOUR):
        clock.ahead, clock.passed = ahead, clock.passed + 10
        assert steady() == pytest.approx(begun + clock.passed, abs=5)
    clock.passed += BELIEVED_SECONDS + 1
    assert steady() == pytest.approx(begun - HOUR + clock.passed, abs=5)


def test_the_steady_clock_follows_slow_corrections():
    clock = Clock()
    steady = SteadyClock(clock.wall, clock.monotonic)
    for _ in range(100):
        clock.ahead, clock.passed = clock.ahead + 20, clock.passed + 600
        assert steady() == pytest.approx(clock.wall(), abs=1)


@pytest.mark.parametrize("ahead", [HOUR, -HOUR])
def test_a_run_neither_meets_nor_misses_its_deadline_by_a_jump(store, settings, commands, go, ahead):
    clock = Clock()
    dispatcher = Dispatcher(
        settings, store, LocalRunner(), commands=commands, clock=SteadyClock(clock.wall, clock.monotonic)
    )
    job = submit(store, epochs=1_000, until=go, job={"deadline": time.time() + HOUR / 2})
    until(lambda: dispatcher.step() or store.jobs.get(job.id).progress.get("epoch"))
    clock.ahead = ahead
    for _ in range(5):
        dispatcher.step()
    assert store.jobs.get(job.id).state == "running"
    clock.passed = HOUR / 2
    done = until(lambda: dispatcher.step() or ((found := store.jobs.get(job.id)).is_terminal and found))
    assert (done.state, done.failure_kind) == ("failed", "deadline")


def test_nothing_is_swept_for_its_age_because_the_clock_was_put_ahead(store, settings):
    kept = settings.model_copy(update={"retain_days": 1.0})
    building = settings.embeddings / f".{new_id()}.{'0' * 12}"
    building.mkdir(parents=True)
    sweep_versions(store, kept, older_than=HOUR, now=time.time())
    assert building.exists()
    sweep_versions(store, kept, older_than=HOUR, now=time.time() + 2 * HOUR)  # what the clock would have done
    assert not building.exists()


def test_a_real_job_ends_well_while_the_clock_goes_back_and_forth(dispatching, store, clock):
    job = submit(store, epochs=30)
    dispatching()
    for ahead in (HOUR, 0.0, -HOUR, 0.0, 30 * HOUR, -30 * HOUR):
        clock.ahead = ahead
        time.sleep(0.1)
    done = ended(store, job.id)
    assert (done.state, done.attempt) == ("succeeded", 1)
