"""Versions on SQLite and PostgreSQL: made with the job that left them, finished once, deleted only when unused."""

from __future__ import annotations

import time
from functools import partial

import pytest
from alembic import command
from alembic.config import Config

from service.store import open_store
from service.store.engine import connect, writing
from service.store.errors import Fenced, InUse, NotFound, StateConflict
from service.store.migrate import _SCRIPTS
from service.store.records import Claim, Embedding, NewJob
from service.store.tables import embeddings
from tests.service.store.conftest import at_once, both
from tests.service.store.published import (
    ABOUT,
    RESULT,
    end_publishing,
    indexing_job,
    publishing_job,
    ready,
    trained,
)  # fmt: skip


def set_published(store, version, moment):
    with writing(store.database) as connection:
        connection.execute(embeddings.update().where(embeddings.c.version == version).values(published=moment))


def test_a_training_job_ends_and_its_version_begins_in_one_step(store):
    before = store.embeddings.revision()
    job = trained(store, "papers.0123456789ab", owner="k1")
    embedding = store.embeddings.get(job.id)
    queued = store.jobs.get(embedding.job_id)
    assert (queued.kind, queued.state, queued.spec) == ("publish", "queued", {"do": "publish", "version": job.id})
    assert (embedding.state, embedding.owner, embedding.name) == ("publishing", "k1", "a\0 name")
    assert (embedding.dataset, embedding.metrics, embedding.indexes) == (job.dataset, RESULT["metrics"], {})
    assert store.embeddings.revision() > before
    assert store.jobs.list(kind="train")[0][0].id == job.id


def test_a_claim_that_no_longer_holds_publishes_nothing(store):
    job, _ = store.jobs.submit(NewJob("train", {}, "hash", "digits"))
    running = store.claims.claim("d", kinds=("train",), lease_seconds=60)
    late = Claim(running.id, running.attempt, "another")
    with pytest.raises(Fenced):
        store.claims.finish(late, "succeeded", publish=publishing_job(job.id))
    assert store.embeddings.get(job.id) is None
    assert store.jobs.list(kind="publish")[0] == []


def test_finished_once_by_the_job_that_publishes_it(store):
    job = trained(store)
    embedding = store.embeddings.get(job.id)
    with pytest.raises(Fenced):
        store.embeddings.finish(job.id, "another", about=ABOUT)
    made = store.embeddings.finish(job.id, embedding.job_id, about=ABOUT, index=indexing_job(job.id))
    assert (made.state, made.about) == ("ready", ABOUT)
    assert made.published is not None
    assert made.indexes["hnsw"]["state"] == "building"
    assert store.jobs.get(made.indexes["hnsw"]["job"]).kind == "index"
    for repeated in ({"about": ABOUT}, {"failure": "late"}):
        with pytest.raises(Fenced):
            store.embeddings.finish(job.id, embedding.job_id, **repeated)
    assert store.embeddings.get(job.id) == made
    assert len(store.jobs.list(kind="index")[0]) == 1
    assert store.aliases.get("latest").version == job.id


def test_one_that_failed_is_published_anew_and_others_stay(store):
    job = trained(store)
    first = store.embeddings.get(job.id)
    assert store.embeddings.create(job, publishing_job(job.id)) == (first, False)
    failed = store.embeddings.finish(job.id, first.job_id, failure="a\0 reason")
    assert (failed.state, failed.failure) == ("failed", "a\0 reason")
    assert store.aliases.get("latest") is None
    results = at_once(6, lambda _: store.embeddings.create(job, publishing_job(job.id)))
    assert sorted(queued for _, queued in results) == [False] * 5 + [True]
    anew = store.embeddings.get(job.id)
    assert (anew.state, anew.failure) == ("publishing", None)
    assert anew.job_id != first.job_id
    with pytest.raises(Fenced):
        store.embeddings.finish(job.id, first.job_id, about=ABOUT)
    store.embeddings.finish(job.id, anew.job_id, about=ABOUT)
    assert store.embeddings.create(job, publishing_job(job.id))[1] is False


def test_only_what_a_training_job_left_can_be_published(store):
    job, _ = store.jobs.submit(NewJob("train", {}, "hash", "digits"))
    with pytest.raises(StateConflict, match="queued"):
        store.embeddings.create(job, publishing_job(job.id))
    store.jobs.cancel(job.id)
    store.jobs.delete(job.id)
    with pytest.raises(NotFound):
        store.embeddings.create(job, publishing_job(job.id))
    assert store.jobs.list(kind="publish")[0] == []


def test_a_job_cannot_be_deleted_while_its_files_are_published(store):
    job = trained(store)
    embedding = store.embeddings.get(job.id)
    with pytest.raises(StateConflict, match="published"):
        store.jobs.delete(job.id)
    store.embeddings.finish(job.id, embedding.job_id, about=ABOUT)
    store.jobs.delete(job.id)
    assert store.embeddings.get(job.id).state == "ready"


def test_a_publishing_job_that_was_cancelled_before_its_turn_keeps_nobody_waiting(store):
    job = trained(store)
    store.jobs.cancel(store.embeddings.get(job.id).job_id)
    anew, queued = store.embeddings.create(job, publishing_job(job.id))
    assert queued
    store.jobs.cancel(anew.job_id)
    store.embeddings.delete(job.id)
    store.jobs.delete(job.id)


def test_publishing_needs_neither_the_data_set_nor_the_quota_of_its_owner(store):
    trained(store, "papers.0123456789ab", owner="k1")
    assert store.jobs.using("papers.0123456789ab") == 0
    _, is_new = store.jobs.submit(NewJob("train", {}, "hash", "digits", owner="k1"), max_active=1)
    assert is_new


def test_deleting_and_finishing_at_once_never_leave_an_alias_to_nothing(store):
    for _ in range(4):
        job = trained(store)
        publisher = store.embeddings.get(job.id).job_id
        store.jobs.cancel(publisher)  # or deleting would be refused; its last word is yet to come
        finish = partial(store.embeddings.finish, job.id, publisher, about=ABOUT)
        finished, deleted = both(finish, partial(store.embeddings.delete, job.id))
        assert isinstance(finished, Embedding | Fenced)
        assert isinstance(deleted, Embedding)
        snapshot = store.embeddings.snapshot()
        assert snapshot.versions == {}
        assert snapshot.aliases == {}


def test_deleting_waits_for_publishing_and_indexing(store):
    job = trained(store)
    publisher = store.embeddings.get(job.id).job_id
    with pytest.raises(InUse, match="published"):
        store.embeddings.delete(job.id)
    store.embeddings.finish(job.id, publisher, about=ABOUT)
    made, queued = store.embeddings.build_index(job.id, "ivf", indexing_job(job.id, "ivf"))
    assert queued
    assert store.embeddings.build_index(job.id, "ivf", indexing_job(job.id, "ivf")) == (made, False)
    with pytest.raises(InUse, match="index"):
        store.embeddings.delete(job.id)
    builder = made.indexes["ivf"]["job"]
    with pytest.raises(Fenced):
        store.embeddings.finish_index(job.id, "hnsw", builder, about={})
    done = store.embeddings.finish_index(job.id, "ivf", builder, about={"recall_at_10": 0.97})
    assert done.indexes == {"ivf": {"state": "ready", "job": builder, "recall_at_10": 0.97}}
    with pytest.raises(Fenced):
        store.embeddings.finish_index(job.id, "ivf", builder, failure="late")
    store.embeddings.delete(job.id)
    assert store.embeddings.get(job.id) is None
    with pytest.raises(NotFound):
        store.embeddings.delete(job.id)
    with pytest.raises(NotFound):
        store.embeddings.build_index(job.id, "ivf", indexing_job(job.id, "ivf"))


def test_an_index_that_failed_is_built_anew_and_a_version_that_is_not_ready_has_none(store):
    job = trained(store)
    with pytest.raises(StateConflict, match="publishing"):
        store.embeddings.build_index(job.id, "ivf", indexing_job(job.id, "ivf"))
    store.embeddings.finish(job.id, store.embeddings.get(job.id).job_id, about=ABOUT, index=indexing_job(job.id))
    first = store.embeddings.get(job.id).indexes["hnsw"]["job"]
    failed = store.embeddings.finish_index(job.id, "hnsw", first, failure="no memory")
    assert failed.indexes["hnsw"] == {"state": "failed", "job": first, "failure": "no memory"}
    again, queued = store.embeddings.build_index(job.id, "hnsw", indexing_job(job.id))
    assert (queued, again.indexes["hnsw"]["state"]) == (True, "building")


def test_pages_newest_first_by_data_set_with_and_without_version(store):
    made = [ready(store, f"papers.0123456789a{number}") for number in range(3)] + [ready(store, "papers.all")]
    first, cursor = store.embeddings.list(limit=3)
    rest, end = store.embeddings.list(limit=3, before=cursor)
    assert [one.version for one in first + rest] == [one.version for one in reversed(made)]
    assert end is None
    of_all, _ = store.embeddings.list(dataset="papers")
    assert [one.dataset for one in of_all] == ["papers.0123456789a2", "papers.0123456789a1", "papers.0123456789a0"]
    of_one, _ = store.embeddings.list(dataset="papers.0123456789a1")
    assert [one.version for one in of_one] == [made[1].version]
    assert store.embeddings.list(dataset="paper%")[0] == []


def test_the_snapshot_is_of_one_moment_and_its_revision_grows_with_every_change(store):
    """One revision, one content, also while an alias is moved all the time."""
    one, two = ready(store), ready(store)
    snapshot = store.embeddings.snapshot()
    assert snapshot.versions[one.version].about == {name: value for name, value in ABOUT.items() if name != "export"}
    assert snapshot.revision == store.embeddings.revision()
    store.aliases.move("x", one.version, owner=None)
    seen = [store.embeddings.revision()]
    assert seen[0] > snapshot.revision
    stop = time.monotonic() + 1.5

    def work(number):
        found = []
        turn = 0
        while time.monotonic() < stop:
            if number == 0:
                turn += 1
                store.aliases.move("x", (one, two)[turn % 2].version, owner=None)
            else:
                snapshot = store.embeddings.snapshot()
                found.append((snapshot.revision, snapshot.aliases["x"]))
        return found

    _, *readers = at_once(3, work)
    pairs = {pair for found in readers for pair in found}
    assert len({revision for revision, _ in pairs}) == len(pairs)
    for found in readers:
        assert [revision for revision, _ in found] == sorted(revision for revision, _ in found)


def test_retention_keeps_the_newest_and_whatever_someone_points_to(store):
    old = [ready(store) for _ in range(5)]
    other = ready(store, "papers.0123456789ab")
    versions = [one.version for one in old]
    store.aliases.move("prod", versions[1], owner=None)
    assert store.embeddings.expired(keep=0, seconds=0) == []
    assert store.embeddings.expired(keep=2, seconds=0) == [versions[0], versions[2]]
    assert store.embeddings.expired(keep=1, seconds=0) == [versions[0], versions[2], versions[3]]
    for version in (versions[0], versions[1], versions[4], other.version):
        set_published(store, version, time.time() - 100)
    assert store.embeddings.expired(keep=0, seconds=50) == [versions[0]]
    assert store.embeddings.expired(keep=3, seconds=50) == [versions[0]]
    trained(store)  # one that is not ready counts for nothing
    assert store.embeddings.expired(keep=2, seconds=0) == [versions[0], versions[2]]


def test_files_of_a_deleted_version_are_removed_unless_it_was_published_anew(store):
    removed = []
    job = trained(store)
    store.embeddings.finish(job.id, store.embeddings.get(job.id).job_id, about=ABOUT)
    assert not store.embeddings.remove_files(job.id, lambda: removed.append("while there"))
    assert not store.embeddings.remove_files("nobody", lambda: removed.append("never known"))
    end_publishing(store, job)
    store.embeddings.delete(job.id)
    assert store.embeddings.deleted() == [job.id]
    for _ in range(2):  # a process that was cut off may leave files later, too
        assert store.embeddings.remove_files(job.id, lambda: removed.append("deleted"))
    store.embeddings.create(job, publishing_job(job.id))
    assert not store.embeddings.remove_files(job.id, lambda: removed.append("anew"))
    assert store.embeddings.deleted() == []
    assert removed == ["deleted"] * 2


def test_a_database_of_the_first_revision_is_brought_up_to_date_and_its_jobs_go_on(settings):
    settings.home.mkdir(parents=True, exist_ok=True)
    database = connect(settings.database)
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    with writing(database) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.exec_driver_sql(
            "INSERT INTO jobs (id, kind, state, attempt, priority, spec, spec_hash, dataset, created, not_before,"
            " infra_retries, oom_retries, progress, metrics, relay, last_seq) VALUES ('01old', 'train', 'queued', 0, 0,"
            " '{}', 'x', 'digits', 1.0, 1.0, 0, 0, '{}', '{}', '{}', 1)"
        )
    database.close()
    store = open_store(settings)
    running = store.claims.claim("d", kinds=("train",), lease_seconds=60)
    store.claims.finish(Claim.on(running), "succeeded", result=RESULT, publish=publishing_job("01old"))
    made = store.embeddings.get("01old")
    assert made.state == "publishing"
    store.embeddings.finish("01old", made.job_id, about=ABOUT)
    assert store.embeddings.snapshot().aliases == {"latest": "01old", "latest.digits": "01old"}
    assert store.embeddings.revision() > 0
    store.close()
