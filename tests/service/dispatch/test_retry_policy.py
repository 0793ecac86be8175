"""What follows from how an attempt ended: the whole table, and the cases where two rules meet."""

from __future__ import annotations

import signal
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from service.dispatch.retry_policy import Finish, Retry, classify, decide
from service.dispatch.runner import Gone, NotStarted, Outcome
from service.settings import Settings
from service.store.records import Job

NOW = 1_000_000.0
SETTINGS = Settings(infra_retries=3, oom_retries=2, retry_seconds=2.0, retry_seconds_max=10.0)
JOB = Job(
    id="j", kind="train", state="running", attempt=1, priority=0, name=None, owner=None, spec={}, spec_hash="x",
    dataset="digits", memory_bytes=None, deadline=None, created=0.0, not_before=0.0, started=None, ended=None,
    lease_owner="d", lease_expires=None, runner=None, infra_retries=0, oom_retries=0, failure_kind=None,
    failure_message=None, progress={}, metrics={}, result=None, relay={}, mlflow_run_id=None, tracker_error=None,
    last_seq=1, cancel_requested=None,
)  # fmt: skip
INFRA: list[Outcome | Gone] = [
    Outcome(1, message="a fault"), Outcome(2), Outcome(5, kind="infra"), Outcome(6, kind="cancelled"), Outcome(77),
    Outcome(None, signal.SIGKILL), Outcome(None, signal.SIGTERM), Outcome(None, signal.SIGSEGV),
    Outcome(None, kind="infra", message="cannot start the job"), Gone(),
]  # fmt: skip
OOM = [Outcome(4, kind="oom"), Outcome(4), Outcome(None, signal.SIGKILL, "oom", "m", True), Outcome(1, kind="oom")]
INVALID = [Outcome(3, kind="invalid"), Outcome(3)]


def job(**changes: Any) -> Job:
    return replace(JOB, **changes)


@pytest.mark.parametrize(
    "state, deadline, stopping", list(product(["running", "cancelling"], [None, NOW - 1, NOW + 99], [False, True]))
)
def test_success_stays_success_whatever_was_wished_meanwhile(state, deadline, stopping):
    done = decide(job(state=state, deadline=deadline), Outcome(0), NOW, SETTINGS, stopping=stopping)
    assert done == Finish("succeeded")


@pytest.mark.parametrize("ended", [*INFRA, *OOM, *INVALID], ids=str)
@pytest.mark.parametrize("deadline, stopping", list(product([None, NOW - 1], [False, True])))
def test_whatever_ends_while_cancelling_is_cancelled_without_a_failure(ended, deadline, stopping):
    done = decide(job(state="cancelling", deadline=deadline), ended, NOW, SETTINGS, stopping=stopping)
    assert done == Finish("cancelled")


@pytest.mark.parametrize("ended", INVALID, ids=str)
@pytest.mark.parametrize("deadline, stopping", list(product([None, NOW - 1], [False, True])))
def test_invalid_fails_at_once_also_after_the_deadline(ended, deadline, stopping):
    done = decide(job(deadline=deadline), ended, NOW, SETTINGS, stopping=stopping)
    assert isinstance(done, Finish)
    assert (done.state, done.kind) == ("failed", "invalid")


@pytest.mark.parametrize("ended", [*INFRA, *OOM], ids=str)
@pytest.mark.parametrize("used", [0, 1, 2, 3])
def test_deadline_beats_the_retry_budget(ended, used):
    done = decide(job(deadline=NOW, infra_retries=used, oom_retries=used), ended, NOW, SETTINGS)
    assert isinstance(done, Finish)
    assert (done.state, done.kind) == ("failed", "deadline")


@pytest.mark.parametrize("ended", [*INFRA, *OOM], ids=str)
def test_retry_that_would_begin_after_the_deadline_is_not_made(ended):
    early, late = job(deadline=NOW + 2.0), job(deadline=NOW + 2.1)
    done = decide(early, ended, NOW, SETTINGS)
    assert isinstance(done, Finish)
    assert done.kind == "deadline"
    assert isinstance(decide(late, ended, NOW, SETTINGS), Retry)


@pytest.mark.parametrize("ended", INFRA, ids=str)
def test_infra_is_tried_again_with_doubling_pauses_until_the_budget_is_used(ended):
    pauses = []
    for used in range(SETTINGS.infra_retries):
        again = decide(job(infra_retries=used, oom_retries=1), ended, NOW, SETTINGS)
        assert isinstance(again, Retry)
        assert (again.infra_retries, again.oom_retries, again.kind) == (used + 1, 1, "infra")
        pauses.append(again.delay)
    assert pauses == [2.0, 4.0, 8.0]
    done = decide(job(infra_retries=SETTINGS.infra_retries), ended, NOW, SETTINGS)
    assert isinstance(done, Finish)
    assert (done.state, done.kind) == ("failed", "infra")


def test_pauses_have_a_longest_one():
    many = Settings(infra_retries=100, retry_seconds=2.0, retry_seconds_max=10.0)
    again = decide(job(infra_retries=90), Gone(), NOW, many)
    assert isinstance(again, Retry)
    assert again.delay == 10.0


@pytest.mark.parametrize("ended", OOM, ids=str)
def test_oom_has_a_budget_of_its_own(ended):
    for used in range(SETTINGS.oom_retries):
        again = decide(job(oom_retries=used, infra_retries=3), ended, NOW, SETTINGS)
        assert isinstance(again, Retry)
        assert (again.infra_retries, again.oom_retries, again.kind) == (3, used + 1, "oom")
    done = decide(job(oom_retries=SETTINGS.oom_retries), ended, NOW, SETTINGS)
    assert isinstance(done, Finish)
    assert (done.state, done.kind) == ("failed", "oom")


@pytest.mark.parametrize(
    "ended",
    [Outcome(6, kind="cancelled"), Outcome(None, signal.SIGTERM), Outcome(None, signal.SIGKILL), Gone()],
    ids=str,
)
def test_run_that_the_service_ended_to_stop_is_queued_again_and_nothing_is_counted(ended):
    again = decide(job(infra_retries=3, oom_retries=2), ended, NOW, SETTINGS, stopping=True)
    assert again == Retry(0.0, 3, 2, "service stopped", None)


@pytest.mark.parametrize("attempt, pause", list(product([1, 4, 1_000], [0.1, 2.0, 10.0])))
def test_what_could_not_be_started_counts_as_no_retry_and_waits_longer_than_the_dispatcher(attempt, pause):
    used_up = job(attempt=attempt, infra_retries=3, oom_retries=2)
    again = decide(used_up, NotStarted("cannot start the job: disk full", pause), NOW, SETTINGS)
    assert isinstance(again, Retry)
    assert (again.infra_retries, again.oom_retries, again.kind) == (3, 2, None)
    assert again.reason == "cannot start the job: disk full"
    assert again.delay > pause


def test_what_cannot_be_started_is_looked_at_again_at_its_deadline_and_ends():
    ended = NotStarted("cannot start the job", 300.0)
    again = decide(job(deadline=NOW + 7), ended, NOW, SETTINGS)
    assert isinstance(again, Retry)
    assert again.delay == 7.0
    done = decide(job(deadline=NOW), ended, NOW, SETTINGS)
    assert isinstance(done, Finish)
    assert done.kind == "deadline"
    assert decide(job(state="cancelling"), ended, NOW, SETTINGS) == Finish("cancelled")


@pytest.mark.parametrize("ended", [Outcome(5), Outcome(1), Outcome(4), Outcome(None, 9, None, None, True)], ids=str)
def test_failures_of_its_own_count_also_while_the_service_stops(ended):
    again = decide(JOB, ended, NOW, SETTINGS, stopping=True)
    assert isinstance(again, Retry)
    assert again.kind in ("infra", "oom")


def test_the_reason_is_one_short_line_and_the_message_is_bounded():
    ended = Outcome(5, message="first line\nsecond line " + "x" * 10_000)
    again = decide(JOB, ended, NOW, SETTINGS)
    assert isinstance(again, Retry)
    assert again.reason == "infra: first line"
    assert len(classify(ended)[1]) == 4_000


@pytest.mark.parametrize("ended", [Outcome(None, signal.SIGABRT, None, "ended by SIGABRT"), Outcome(4, kind="oom")])
def test_a_file_that_ends_its_reader_is_read_once(ended):
    done = decide(job(kind="import"), ended, NOW, SETTINGS)
    assert isinstance(done, Finish)
    assert (done.kind, "Write them anew" in (done.message or "")) == ("invalid", True)
    assert isinstance(decide(job(kind="import"), OOM[2], NOW, SETTINGS), Retry), "the kernel may have meant others"
    assert isinstance(decide(job(kind="import"), Outcome(None, signal.SIGBUS), NOW, SETTINGS), Retry), "or the disk"


@pytest.mark.parametrize("kind", ["publish", "index"])
def test_jobs_of_the_service_follow_the_same_rules(kind):
    again = decide(job(kind=kind), Outcome(None, signal.SIGKILL), NOW, SETTINGS)
    assert isinstance(again, Retry)
    assert (again.kind, again.infra_retries) == ("infra", 1)
    again = decide(job(kind=kind), Outcome(4, kind="oom"), NOW, SETTINGS)
    assert isinstance(again, Retry)
    assert (again.kind, again.oom_retries) == ("oom", 1)
    done = decide(job(kind=kind, oom_retries=2), Outcome(4), NOW, SETTINGS)
    assert isinstance(done, Finish)
    assert (done.state, done.kind) == ("failed", "oom")
    assert decide(job(kind=kind), Outcome(3, message="bad"), NOW, SETTINGS) == Finish("failed", "invalid", "bad")
