"""What several want at once, or one takes away while another counts on it: names, data sets, memory."""

from __future__ import annotations

import os
import socket

import pytest
from sqlalchemy import update

from service.store import Store
from service.store.errors import NotAllowed, NotFound, QuotaExceeded
from service.store.records import Dataset, NewJob
from service.store.tables import dispatchers
from tests.service.store.conftest import POSTGRESQL, at_once


def upload(store: Store, name: str, version: str, owner: str, **options) -> tuple[Dataset, bool]:
    job = NewJob("import", {}, "h", f"{name}.{version}", owner=owner)
    return store.datasets.create(name, version, options={}, size=1, job=job, **options)


def test_of_many_keys_that_take_a_new_name_at_once_one_has_it(store):
    got = at_once(6, lambda n: upload(store, "papers", f"{n:012x}", f"key{n}", may_change=f"key{n}".__eq__))
    assert sum(isinstance(each, NotAllowed) for each in got) == 5
    (mine,) = store.datasets.versions("papers")
    with pytest.raises(NotAllowed):
        store.datasets.check_owner("papers", "another".__eq__)
    store.datasets.check_owner("papers", mine.owner.__eq__)
    upload(store, "papers", "f" * 12, mine.owner, may_change=mine.owner.__eq__)
    assert len(store.datasets.versions("papers")) == 2


def test_a_name_whose_versions_were_all_refused_is_anyone_s(store):
    made, _ = upload(store, "papers", "0" * 12, "first")
    store.datasets.finish(made.ref, made.job_id, failure="no graph")
    assert upload(store, "papers", "1" * 12, "second", may_change="second".__eq__)[1]


def test_of_many_submissions_at_once_no_more_are_taken_than_may_be(store):
    def submit(number: int) -> object:
        return store.jobs.submit(NewJob("train", {}, "h", "digits", owner="me"), max_active=3)

    got = at_once(12, submit)
    assert sum(isinstance(each, QuotaExceeded) for each in got) == 9
    assert len(store.jobs.list(kind="train")[0]) == 3


def test_uploads_at_once_take_no_more_room_than_their_key_has(store):
    got = at_once(6, lambda n: upload(store, f"papers{n}", "0" * 12, "me", most_bytes=2))
    assert sum(isinstance(each, QuotaExceeded) for each in got) == 4
    assert store.datasets.bytes_of("me") == 2
    assert upload(store, "others", "0" * 12, "another", most_bytes=2)[1]


def test_dispatchers_that_beat_again_after_days_do_not_wait_for_each_other(store):
    for turn in range(5):
        for number in range(6):
            store.dispatchers.beat(f"d{number}", host="h", pid=number, info={})
        with store.database.writer.begin() as connection:
            connection.execute(update(dispatchers).values(seen=dispatchers.c.seen - 200_000))
        got = at_once(6, lambda number: store.dispatchers.beat(f"d{number}", host="h", pid=number, info={}))
        assert got == [None] * 6, turn
        store.dispatchers.beat("d0", host="h", pid=0, info={})
        assert store.dispatchers.alive(3_600), "who was seen lately is there"


@pytest.mark.parametrize("settings", [POSTGRESQL], indirect=True)  # SQLite is a file
def test_a_database_whose_host_vanishes_is_not_waited_for_by_the_kernel(settings, store):
    """Data that nobody acknowledges keep keepalive probes from being sent."""
    with store.database.reader.connect() as connection:
        there = socket.socket(fileno=os.dup(connection.connection.driver_connection.fileno()))
        with there:
            assert there.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000


def test_no_job_is_taken_for_an_upload_that_was_deleted_meanwhile(store):
    made, _ = upload(store, "papers", "0" * 12, "me")
    store.datasets.finish(made.ref, made.job_id, about={"nodes": 4})
    new = NewJob("train", {}, "h", made.ref, is_uploaded=True)
    done, _ = store.jobs.submit(new)
    store.jobs.cancel(done.id)
    store.datasets.delete(made.ref)
    with pytest.raises(NotFound, match=r"papers\.0{12} has just been deleted"):
        store.jobs.submit(new)
    assert store.jobs.list(kind="train")[0][0].id == done.id, "the only one"
    store.jobs.submit(NewJob("train", {}, "h", "digits"))  # is no row at all


def test_what_needs_no_memory_passes_by_what_does_not_fit_and_nothing_else_does(store):
    def queue(memory: int | None) -> str:
        return store.jobs.submit(NewJob("import", {}, "h", "d", memory_bytes=memory))[0].id

    def claim(free: int | None) -> str | None:
        job = store.claims.claim("me", kinds=("import",), lease_seconds=60, free_memory=free)
        return None if job is None else job.id

    large = [queue(400) for _ in range(10)]  # more than are looked at in one go
    small, none, zero = queue(100), queue(None), queue(0)
    assert {claim(200), claim(200)} == {none, zero}
    assert claim(200) is None
    taken = {claim(400), claim(None)}
    assert len(taken & set(large)) == 2
    for job_id in set(large) - taken:
        store.jobs.cancel(job_id)
    assert claim(200) == small
