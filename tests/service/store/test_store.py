"""The store on SQLite and on a real PostgreSQL: compare and swap, events without gaps, promises kept."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

import psycopg
import pytest
from sqlalchemy import update

from service.settings import Settings
from service.store import Store, open_store
from service.store.engine import writing
from service.store.errors import Fenced, IdempotencyConflict, InUse, NotFound, QuotaExceeded, StateConflict, Unavailable
from service.store.records import Claim, Idempotency, Job, NewEvent, NewJob
from service.store.tables import jobs
from tests import postgres
from tests.service.store.conftest import at_once
from trainer.errors import InvalidInput

NEW = NewJob("train", {"seed": 1}, "hash", "digits")
HOST = "here"
OVER = -1.0  # seconds of a lease that has ended as soon as it is given


def claimed(store: Store, owner: str = "a", lease: float = 60.0) -> Job:
    job = store.claims.claim(owner, kinds=("train", "sweep"), lease_seconds=lease)
    assert job is not None
    return job


def test_job_goes_its_way_and_every_step_is_an_event(store):
    job, is_new = store.jobs.submit(replace(NEW, name="a\0 name \ud800", memory_bytes=2**40))
    assert is_new
    assert (job.state, job.attempt, job.name, job.memory_bytes) == ("queued", 0, "a\0 name \ud800", 2**40)
    running = claimed(store)
    assert (running.id, running.state, running.attempt) == (job.id, "running", 1)
    claim = Claim.on(running)
    told = [NewEvent("epoch", {"loss": 0.5}, epoch=1), NewEvent("epoch", {"loss": 0.4}, epoch=2)]
    store.claims.record(claim, told, progress={"epoch": 2}, relay={"mark": [2]})
    store.claims.finish(claim, "succeeded", result={"accuracy": 0.9})
    found = store.jobs.get(job.id)
    assert found is not None
    assert (found.state, found.result, found.progress, found.relay) == (
        "succeeded", {"accuracy": 0.9}, {"epoch": 2}, {"mark": [2]},
    )  # fmt: skip
    events = store.events.after(job.id, 0)
    assert [event.seq for event in events] == [1, 2, 3, 4, 5]
    assert [event.type for event in events] == ["state", "state", "epoch", "epoch", "state"]
    assert [event.data.get("state") for event in events] == ["queued", "running", None, None, "succeeded"]
    assert store.events.after(job.id, 3) == events[3:]
    assert store.events.last_seqs([job.id, "nobody"]) == {job.id: 5}
    assert store.events.epoch(job.id, 2) == events[3]
    assert store.events.epoch(job.id, 3) is None


@pytest.mark.parametrize(
    "act",
    [
        lambda store, claim: store.claims.release(claim),
        lambda store, claim: store.claims.record(claim, [NewEvent("epoch")], progress={"epoch": 99}),
        lambda store, claim: store.claims.finish(claim, "failed", failure_kind="infra", failure_message="late"),
        lambda store, claim: store.claims.requeue(claim, delay=0, reason="late", infra_retries=9, oom_retries=9),
    ],
)
@pytest.mark.parametrize("how", ["taken over", "next attempt", "ended"])
def test_a_claim_that_no_longer_holds_changes_nothing(store, act, how):
    job, _ = store.jobs.submit(NEW)
    old = Claim.on(claimed(store, "old", lease=OVER if how == "taken over" else 60))
    if how == "taken over":
        (taken,) = store.claims.take_over("new", lease_seconds=60, host=HOST, foreign_after=0)
        assert (taken.id, taken.attempt, taken.lease_owner) == (job.id, 1, "new")
    elif how == "next attempt":
        store.claims.requeue(old, delay=0, reason="again", infra_retries=1, oom_retries=0)
        assert claimed(store, "old").attempt == 2  # the same dispatcher, another attempt
    else:
        store.claims.finish(old, "succeeded")
    before, events = store.jobs.get(job.id), store.events.after(job.id, 0)
    with pytest.raises(Fenced):
        act(store, old)
    assert (store.jobs.get(job.id), store.events.after(job.id, 0)) == (before, events)


def test_of_many_claims_at_once_each_job_goes_to_one(store):
    ids = {store.jobs.submit(NEW)[0].id for _ in range(8)}
    got = at_once(16, lambda number: store.claims.claim(f"d{number}", kinds=("train",), lease_seconds=60))
    jobs = [job for job in got if isinstance(job, Job)]
    more = [store.claims.claim("late", kinds=("train",), lease_seconds=60) for _ in range(8)]
    jobs += [job for job in more if job is not None]
    assert not [result for result in got if isinstance(result, Exception)]
    assert sorted(job.id for job in jobs) == sorted(ids)


def test_of_many_take_overs_at_once_one_succeeds(store):
    store.jobs.submit(NEW)
    claimed(store, "dead", lease=OVER)
    got = at_once(8, lambda number: store.claims.take_over(f"d{number}", lease_seconds=60, host=HOST, foreign_after=0))
    assert sorted(len(jobs) if isinstance(jobs, list) else -1 for jobs in got) == [0] * 7 + [1]


def test_of_many_ends_at_once_one_counts(store):
    job, _ = store.jobs.submit(NEW)
    claim = Claim.on(claimed(store))
    states = ["succeeded", "failed", "cancelled"] * 3
    got = at_once(9, lambda number: store.claims.finish(claim, states[number]))
    assert sum(isinstance(result, Job) for result in got) == 1
    assert sum(isinstance(result, Fenced) for result in got) == 8
    ends = [event for event in store.events.after(job.id, 0) if event.data.get("state") in states]
    assert [event.data["state"] for event in ends] == [store.jobs.get(job.id).state]


def test_events_written_at_once_are_numbered_without_gaps(store):
    job, _ = store.jobs.submit(NEW)
    claim = Claim.on(claimed(store))
    at_once(8, lambda number: store.claims.record(claim, [NewEvent("step", {"by": number})] * 5))
    events = store.events.after(job.id, 0)
    assert [event.seq for event in events] == list(range(1, 43))
    by = [event.data["by"] for event in events if event.type == "step"]
    assert all(len(set(by[start : start + 5])) == 1 for start in range(0, 40, 5))  # each batch in one piece


def test_same_promise_at_once_makes_one_job(store):
    promise = Idempotency("key", "abc", "request")
    assert store.jobs.promised(promise) is None
    got = at_once(8, lambda number: store.jobs.submit(replace(NEW, owner="key"), idempotency=promise))
    assert not [result for result in got if isinstance(result, Exception)]
    assert len({job.id for job, _ in got}) == 1
    assert sorted(is_new for _, is_new in got) == [False] * 7 + [True]
    assert store.jobs.promised(promise) == got[0][0]
    with pytest.raises(IdempotencyConflict, match="another request"):
        store.jobs.submit(NEW, idempotency=replace(promise, request_hash="other"))
    assert store.jobs.submit(NEW, idempotency=replace(promise, owner=None))[1]  # another client's keys are its own


def test_priority_then_age_decide_and_a_large_job_is_not_starved(store):
    small, large = replace(NEW, memory_bytes=1), replace(NEW, memory_bytes=100)
    first = store.jobs.submit(small)[0].id
    time.sleep(0.002)  # ids sort by the millisecond
    second = store.jobs.submit(small)[0].id
    urgent = store.jobs.submit(replace(large, priority=5))[0].id
    claim = lambda free: store.claims.claim("a", kinds=("train",), lease_seconds=60, free_memory=free)  # noqa: E731
    assert claim(50) is None  # the urgent one does not fit, and none passes it
    assert [claim(100).id, claim(100).id, claim(100).id] == [urgent, first, second]
    assert claim(100) is None


def test_retry_waits_its_time_and_keeps_the_first_start(store):
    store.jobs.submit(NEW)
    first = claimed(store)
    again = store.claims.requeue(
        Claim.on(first), delay=3_600, reason="died", failure_kind="infra", infra_retries=1, oom_retries=0
    )
    assert (again.state, again.infra_retries, again.lease_owner) == ("queued", 1, None)
    assert store.claims.claim("a", kinds=("train",), lease_seconds=60) is None
    with store.database.writer.begin() as connection:  # an hour later
        connection.execute(update(jobs).values(not_before=jobs.c.not_before - 3_600))
    second = claimed(store)
    assert (second.attempt, second.started) == (2, first.started)
    assert store.jobs.figures()["retries"] == {"infra": 1, "oom": 0}


def test_cancelling_by_state(store):
    queued, _ = store.jobs.submit(NEW)
    assert store.jobs.cancel(queued.id).state == "cancelled"
    with pytest.raises(StateConflict, match="was cancelled"):
        store.jobs.cancel(queued.id)
    job, _ = store.jobs.submit(NEW)
    claim = Claim.on(claimed(store))
    assert store.jobs.cancel(job.id).state == "cancelling"
    assert store.jobs.cancel(job.id).last_seq == store.jobs.get(job.id).last_seq  # asking again is no event
    assert [held.state for held in store.claims.held(claim.owner)] == ["cancelling"]
    ended = store.claims.requeue(claim, delay=0, reason="died", infra_retries=1, oom_retries=0)
    assert ended.state == "cancelled"  # not tried again
    with pytest.raises(NotFound):
        store.jobs.cancel("nobody")


def test_process_on_another_machine_is_left_alone_until_its_missing_heartbeat_has_ended_it(store):
    store.jobs.submit(NEW)
    job = claimed(store, "far", lease=OVER)
    store.claims.record(Claim.on(job), runner={"host": "far away"})
    assert store.claims.take_over("near", lease_seconds=60, host=HOST, foreign_after=3_600) == []
    (taken,) = store.claims.take_over("near", lease_seconds=60, host=HOST, foreign_after=0.01)
    assert (taken.id, taken.runner) == (job.id, {"host": "far away"})
    assert [held.id for held in store.claims.held("near")] == [job.id]


def test_pages_are_newest_first_and_complete(store):
    ids = []
    for number in range(7):
        ids.append(store.jobs.submit(replace(NEW, owner="me" if number % 2 else "you"))[0].id)
        time.sleep(0.002)
    seen, cursor = [], None
    while True:
        page, cursor = store.jobs.list(kind="train", before=cursor, limit=3)
        seen += [job.id for job in page]
        if cursor is None:
            break
    assert seen == ids[::-1]
    assert [job.id for job in store.jobs.list(kind="train", owner="me")[0]] == ids[5::-2]
    assert store.jobs.list(kind="sweep")[0] == []
    assert store.jobs.list(kind="train", states=["running"])[0] == []


def test_quota_counts_unfinished_jobs_of_the_owner(store):
    mine = replace(NEW, owner="me")
    first, _ = store.jobs.submit(mine, max_active=2)
    store.jobs.submit(mine, max_active=2)
    with pytest.raises(QuotaExceeded, match="2 unfinished jobs"):
        store.jobs.submit(mine, max_active=2)
    store.jobs.submit(NEW, max_active=2)
    store.jobs.cancel(first.id)
    assert store.jobs.submit(mine, max_active=2)[1]


def test_deleting_forgets_job_events_and_promise(store):
    promise = Idempotency(None, "abc", "request")
    job, _ = store.jobs.submit(NEW, idempotency=promise)
    with pytest.raises(StateConflict, match="cancel it first"):
        store.jobs.delete(job.id)
    store.jobs.cancel(job.id)
    store.jobs.delete(job.id)
    assert store.jobs.get(job.id) is None
    assert store.events.after(job.id, 0) == []
    assert store.jobs.submit(NEW, idempotency=promise)[1]


def test_data_set_is_checked_once_used_and_deleted_only_when_free(store):
    check = NewJob("import", {}, "hash", "papers.0123456789ab", owner="me")
    make = lambda: store.datasets.create("papers", "0123456789ab", options={"directed": True}, size=10, job=check)  # noqa: E731
    made, queued = make()
    assert (queued, made.state, made.ref) == (True, "checking", "papers.0123456789ab")
    assert make() == (made, False)
    with pytest.raises(InUse, match="being checked"):
        store.datasets.delete(made.ref)
    refused = store.datasets.finish(made.ref, made.job_id, failure="row 3: not a number")
    assert (refused.state, store.datasets.bytes_of("me")) == ("failed", 0)
    again, queued = make()
    assert queued
    with pytest.raises(Fenced):
        store.datasets.finish(made.ref, made.job_id, about={"nodes": 1})  # of the first check
    ready = store.datasets.finish(again.ref, again.job_id, about={"nodes": 3})
    assert (ready.state, ready.about, store.datasets.bytes_of("me")) == ("ready", {"nodes": 3}, 10)
    assert store.datasets.newest("papers") == ready
    job, _ = store.jobs.submit(replace(NEW, dataset=ready.ref))
    with pytest.raises(InUse, match="1 unfinished job "):
        store.datasets.delete(ready.ref)
    store.jobs.cancel(job.id)
    store.datasets.delete(ready.ref)
    assert store.datasets.get(ready.ref) is None
    with pytest.raises(NotFound):
        store.datasets.delete(ready.ref)


def test_keys_are_hashed_expire_and_can_be_revoked(store):
    key, text = store.keys.create("laptop", {"submit"})
    assert store.keys.check(text).id == key.id
    assert key.allows("read")
    assert key.allows("submit")
    assert not key.allows("admin")
    assert store.keys.check(text[:-1] + ("0" if text[-1] != "0" else "1")) is None
    assert store.keys.check("nml_" + "0" * 12 + "_" + "0" * 64) is None
    assert store.keys.check("nonsense") is None
    _, old = store.keys.create("old", {"read"}, expires=time.time() - 1)
    assert store.keys.check(old) is None
    store.keys.revoke(key.id)
    assert store.keys.check(text) is None
    with pytest.raises(NotFound):
        store.keys.revoke("nobody")
    with pytest.raises(ValueError, match="scopes"):
        store.keys.create("x", {"root"})


def test_secrets_are_not_in_the_database(tmp_path):
    store = open_store(Settings(home=tmp_path))
    _, text = store.keys.create("laptop", {"admin"})
    store.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("service.db*"))
    assert text.split("_")[1].encode() in stored
    assert text.split("_")[2].encode() not in stored


def test_processes_that_start_together_migrate_once(settings):
    stores = at_once(6, lambda _: open_store(settings))
    assert not [result for result in stores if isinstance(result, Exception)]
    for opened in stores:
        opened.close()


def test_migrations_and_tables_agree(store):
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    from service.store.tables import metadata

    with store.database.reader.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_dispatchers_are_seen_while_they_beat(store):
    store.dispatchers.beat("d1", host=HOST, pid=1, info={"running": 2})
    store.dispatchers.beat("d1", host=HOST, pid=1, info={"running": 3})
    (seen,) = store.dispatchers.alive(3_600)
    assert (seen.id, seen.info) == ("d1", {"running": 3})
    assert store.dispatchers.alive(-1) == []
    store.dispatchers.remove("d1")
    assert store.dispatchers.alive(3_600) == []


def test_the_same_data_set_registered_at_once_is_checked_once(store):
    check = NewJob("import", {}, "hash", "papers.0123456789ab")
    got = at_once(6, lambda _: store.datasets.create("papers", "0123456789ab", options={}, size=1, job=check))
    assert not [result for result in got if isinstance(result, Exception)]
    assert sorted(queued for _, queued in got) == [False] * 5 + [True]


def test_long_curve_is_read_by_pages_thinned_and_deleted_by_pieces(store):
    job, _ = store.jobs.submit(NEW)
    claim = Claim.on(claimed(store))
    for start in range(1, 12_001, 1_000):
        store.claims.record(claim, [NewEvent("epoch", {}, epoch=at) for at in range(start, start + 1_000)])
    store.claims.record(claim, [NewEvent("rewind", {"epoch": 7})])
    assert [event.epoch for event in store.events.series(job.id)] == [*range(1, 12_001), None]
    assert [event.epoch for event in store.events.series(job.id, every=5_000)] == [5_000, 10_000, None]
    store.claims.finish(claim, "failed")
    store.jobs.delete(job.id)
    assert store.events.after(job.id, 0) == []


def test_everything_held_is_renewed_at_once_and_nothing_else(store):
    mine, others = [], []
    for owner, ids in (("me", mine), ("you", others)):
        for _ in range(2):
            store.jobs.submit(NEW)
            ids.append(claimed(store, owner, lease=OVER).id)
    store.claims.renew_all("me", 3_600)
    taken = store.claims.take_over("third", lease_seconds=60, host=HOST, foreign_after=0)
    assert sorted(job.id for job in taken) == sorted(others)


def test_pages_leave_out_what_may_be_large(store):
    store.jobs.submit(NEW)
    (listed,), _ = store.jobs.list(kind="train")
    assert (listed.spec, listed.relay) == ({}, {})


@pytest.mark.skipif(postgres.MISSING, reason=postgres.MISSING_REASON)
def test_database_that_can_only_be_read_is_unavailable(tmp_path, server):
    url = server().new_database(f"t{secrets.token_hex(6)}")
    open_store(Settings(home=tmp_path, database_url=url)).close()
    with psycopg.connect(url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    only = open_store(Settings(home=tmp_path, database_url=url))
    with pytest.raises(Unavailable, match="read-only"):
        only.jobs.submit(NEW)
    only.close()


def test_jobs_that_waited_past_their_deadline_end_without_a_turn(store):
    late, _ = store.jobs.submit(replace(NEW, deadline=time.time() - 1))
    patient, _ = store.jobs.submit(replace(NEW, deadline=time.time() + 3_600))
    assert [job.id for job in store.claims.expire()] == [late.id]
    ended = store.jobs.get(late.id)
    assert (ended.state, ended.failure_kind, ended.attempt) == ("failed", "deadline", 0)
    assert store.events.after(late.id, 1)[0].data["state"] == "failed"
    assert store.jobs.get(patient.id).state == "queued"
    assert store.claims.expire() == []


def test_jobs_are_found_by_name_time_and_metadata(store):
    first = store.jobs.submit(replace(NEW, name="a%b", metadata={"team": "graphs", "run": "1"}))[0]
    second = store.jobs.submit(replace(NEW, name="é", metadata={"team": "graphs", "run": "2"}))[0]
    third = store.jobs.submit(replace(NEW, metadata={"run": "graphs"}))[0]
    assert store.jobs.get(second.id).metadata == {"team": "graphs", "run": "2"}

    def found(**wanted):
        return [job.id for job in store.jobs.list(kind="train", **wanted)[0]]

    assert found(name="é") == [second.id]
    assert found(name="a%b") == [first.id]
    assert found(name="a") == []
    assert found(metadata={"team": "graphs"}) == [second.id, first.id]
    assert found(metadata={"team": "graphs", "run": "1"}) == [first.id]
    assert found(metadata={"team": "Graphs"}) == []
    assert found(metadata={"run": "graphs"}) == [third.id]
    with writing(store.database) as connection:
        for at, job in enumerate((first, second, third)):
            connection.execute(update(jobs).where(jobs.c.id == job.id).values(created=100.0 + at))
    assert found(created_from=101.0) == [third.id, second.id]
    assert found(created_before=101.0) == [first.id]
    page, cursor = store.jobs.list(kind="train", metadata={"team": "graphs"}, limit=1)
    rest, end = store.jobs.list(kind="train", metadata={"team": "graphs"}, limit=1, before=cursor)
    assert ([job.id for job in page + rest], end) == ([second.id, first.id], None)


def test_what_is_noted_on_a_job_can_be_edited_and_goes_with_it(store):
    job, _ = store.jobs.submit(replace(NEW, name="first", metadata={"a": "1", "b": "2"}))
    edited = store.jobs.edit(job.id, {"name": None, "priority": 9, "metadata": {"a": None, "c": "3"}})
    assert (edited.name, edited.priority, edited.metadata) == (None, 9, {"b": "2", "c": "3"})
    assert store.jobs.get(job.id) == edited
    assert store.jobs.list(kind="train", metadata={"a": "1"})[0] == []
    with pytest.raises(InvalidInput, match="up to 20"):
        store.jobs.edit(job.id, {"metadata": {f"k{number}": "x" for number in range(19)}})
    assert store.jobs.get(job.id) == edited
    store.jobs.cancel(job.id)
    with pytest.raises(StateConflict, match="was cancelled"):
        store.jobs.edit(job.id, {"priority": 1})
    assert store.jobs.edit(job.id, {"name": "later"}).name == "later"
    store.jobs.delete(job.id)
    assert store.jobs.list(kind="train", metadata={"b": "2"})[0] == []
    with pytest.raises(NotFound):
        store.jobs.edit(job.id, {"name": "x"})


def test_a_priority_that_was_raised_decides_what_starts_next(store):
    first, second = (store.jobs.submit(NEW)[0] for _ in range(2))
    store.jobs.edit(second.id, {"priority": 1})
    assert claimed(store, "d").id == second.id
    assert claimed(store, "d").id == first.id
