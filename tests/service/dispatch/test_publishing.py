"""Publishing and indexing under a dispatcher: every training job that leaves vectors has a version, or says why not."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import replace

import pytest

from service.discarded import discard
from service.dispatch.job_commands import JobCommands
from service.embeddings.approximate import index_memory
from service.embeddings.jobs import finish_index, finish_publish, index_job, most_memory, publish_job, reconciled
from service.embeddings.layout import read_info
from service.store.records import NewJob
from tests.service.dispatch.conftest import STANDIN, ended, events_of, submit, until
from tests.service.dispatch.dispatcher_process import CONCLUDED
from tests.service.dispatch.test_real_jobs import document
from tests.service.store.published import indexing_job, ready, trained

WAIT = (sys.executable, "-c", "import time; time.sleep(600)")
FLAKY = """
import os, pathlib, signal, sys
marker = pathlib.Path(sys.argv[1]).with_name("seen")
if not marker.exists():
    marker.touch()
    os.kill(os.getpid(), signal.SIGKILL)
os.execv(sys.executable, [sys.executable, "-P", "-m", "service.embeddings", sys.argv[1]])
"""


def published(store, version, *, state="ready", seconds=120):
    """The version once it has come to an end, and the job that published it."""
    embedding = until(lambda: (e := store.embeddings.get(version)) and e.state != "publishing" and e, seconds)
    assert embedding.state == state, embedding.failure
    return embedding, ended(store, embedding.job_id)


def contents(folder, names):
    return {name: (folder / name).read_bytes() for name in names}


def test_vectors_of_a_job_become_a_version_that_outlives_the_job(dispatching, store, settings):
    job = submit(store, epochs=2, export=5, job={"dataset": "papers.0123456789ab", "owner": "k1"})
    dispatching()
    assert ended(store, job.id).result["embeddings"]
    embedding, publisher = published(store, job.id)
    assert (publisher.kind, publisher.state, publisher.attempt) == ("publish", "succeeded", 1)
    assert [event.type for event in events_of(store, publisher.id)] == ["state"] * 3
    # k1 owns no data set of that name, so `latest.papers` does not follow its jobs (tests/abuse/test_names.py)
    assert store.embeddings.snapshot().aliases == {"latest": job.id}
    assert (embedding.owner, embedding.dataset) == ("k1", "papers.0123456789ab")
    assert (embedding.about["rows"], embedding.about["dim"], embedding.about["id_type"]) == (5, 4, "int")
    assert "files" not in embedding.about
    assert embedding.metrics == json.loads((settings.run_directory(job.id) / "metrics.json").read_text())
    run, version = settings.run_directory(job.id) / "embeddings", settings.version_directory(job.id)
    exported = contents(run, ["vectors.npy", "ids.npy"])
    assert contents(version, exported) == exported
    assert json.loads((run / "manifest.json").read_text())["files"].items() <= read_info(version).files.items()
    store.jobs.delete(job.id)
    discard(settings.run_directory(job.id))
    assert contents(version, exported) == exported


def test_a_damaged_export_fails_with_its_reason_and_the_training_job_stays_a_success(dispatching, store, settings):
    job = submit(store, epochs=2, export=5, damage=True)
    dispatching()
    assert ended(store, job.id).state == "succeeded"
    embedding, publisher = published(store, job.id, state="failed")
    assert (publisher.state, publisher.failure_kind, publisher.attempt) == ("failed", "invalid", 1)
    assert embedding.failure == publisher.failure_message
    assert embedding.failure.startswith("vectors.npy: differs from the checksum")
    assert store.embeddings.snapshot().aliases == {}
    assert not list(settings.embeddings.iterdir())
    assert store.jobs.get(job.id).state == "succeeded"


def test_a_job_without_vectors_is_not_published(dispatching, store):
    job = submit(store, epochs=2)
    dispatching()
    assert ended(store, job.id).state == "succeeded"
    assert store.embeddings.get(job.id) is None
    assert store.jobs.list(kind="publish")[0] == []


@pytest.mark.slow
def test_killed_between_the_version_and_the_end_of_its_job_nothing_is_done_twice(process, store, settings):
    job = submit(store, epochs=2, export=5)
    assert process(CONCLUDED).wait(120) == -signal.SIGKILL
    before = store.embeddings.get(job.id)
    assert (before.state, store.jobs.get(before.job_id).state) == ("ready", "running")
    revision = store.embeddings.revision()
    process()
    done = ended(store, before.job_id)
    assert (done.state, done.attempt) == ("succeeded", 1)
    assert store.embeddings.get(job.id) == before
    assert store.embeddings.revision() == revision
    assert [move.seq for move in store.aliases.history("latest")] == [1]
    assert len(store.jobs.list(kind="publish")[0]) == 1


@pytest.mark.slow
def test_a_publishing_process_that_dies_is_tried_again(dispatching, store, settings, tmp_path):
    script = tmp_path / "flaky.py"
    script.write_text(FLAKY)
    job = submit(store, epochs=2, export=5)
    dispatching(commands=JobCommands(settings, train=STANDIN, vectors=(sys.executable, str(script))))
    _, publisher = published(store, job.id)
    assert (publisher.state, publisher.attempt, publisher.infra_retries) == ("succeeded", 2, 1)


def test_what_says_it_succeeded_but_made_nothing_fails_for_good_after_its_retries(dispatching, store, settings):
    job = submit(store, epochs=2, export=5)
    quick = settings.model_copy(update={"infra_retries": 1})
    dispatching(settings=quick, commands=JobCommands(quick, train=STANDIN, vectors=(sys.executable, "-c", "")))
    embedding, publisher = published(store, job.id, state="failed")
    assert (publisher.state, publisher.failure_kind, publisher.infra_retries) == ("failed", "infra", 1)
    assert embedding.failure.startswith("cannot read what the job wrote")


def test_publishing_that_is_cancelled_while_it_runs_fails(dispatching, store, settings):
    job = submit(store, epochs=2, export=5)
    dispatching(commands=JobCommands(settings, train=STANDIN, vectors=WAIT))
    embedding = until(lambda: store.embeddings.get(job.id))
    until(lambda: store.jobs.get(embedding.job_id).runner)
    assert reconciled(embedding, store) == embedding  # whose job goes on
    store.jobs.cancel(embedding.job_id)
    failed, publisher = published(store, job.id, state="failed")
    assert (publisher.state, failed.failure) == ("cancelled", "the job was cancelled")


def test_what_was_cancelled_before_its_turn_is_told_by_the_next_dispatcher(dispatching, store):
    unpublished, unindexed = trained(store), ready(store).version
    made, _ = store.embeddings.build_index(unindexed, "hnsw", indexing_job(unindexed))
    store.jobs.cancel(store.embeddings.get(unpublished.id).job_id)
    store.jobs.cancel(made.indexes["hnsw"]["job"])
    dispatching()
    failed, _ = published(store, unpublished.id, state="failed")
    assert failed.failure == "its publishing was cancelled; publish it again"
    entry = until(lambda: (e := store.embeddings.get(unindexed).indexes["hnsw"])["state"] == "failed" and e)
    assert "cancelled" in entry["failure"]
    assert store.embeddings.get(unindexed).state == "ready"


@pytest.mark.slow
def test_a_large_table_is_indexed_by_itself(dispatching, store, settings):
    job = submit(store, epochs=2, export=300)
    dispatching(settings=settings.model_copy(update={"index_min_rows": 300}))
    published(store, job.id)
    entry = until(lambda: (e := store.embeddings.get(job.id).indexes["hnsw"])["state"] != "building" and e)
    assert entry["state"] == "ready", entry
    assert 0.5 < entry["recall_at_10"] <= 1.0
    indexing = ended(store, entry["job"])
    assert (indexing.kind, indexing.state, indexing.priority) == ("index", "succeeded", -1)
    assert (settings.version_directory(job.id) / "index.hnsw.faiss").stat().st_size > 300 * 4 * 4


@pytest.mark.slow
def test_old_versions_go_when_new_ones_come_but_not_what_someone_points_to(dispatching, store, settings):
    dispatching(settings=settings.model_copy(update={"retain_versions": 1}))
    made = []
    for seed in range(3):
        made.append(submit(store, epochs=1, seed=seed, export=5).id)
        published(store, made[-1])
        if seed == 0:
            store.aliases.move("prod", made[0], owner=None)
    kept = {made[0], made[2]}
    until(lambda: {folder.name for folder in settings.embeddings.iterdir()} == kept)
    assert set(store.embeddings.snapshot().versions) == kept


@pytest.mark.parametrize("failure", [None, "late"])
def test_concluding_what_was_deleted_since_is_harmless(store, settings, failure):
    """A dispatcher that was asleep; there are no files left to read, and that is no failure of the job."""
    job = submit(store, epochs=1)
    finish_publish(replace(job, kind="publish", spec=publish_job(job).spec), store, settings, failure=failure)
    spec = {"do": "index", "version": job.id, "kind": "hnsw"}
    finish_index(replace(job, kind="index", spec=spec), store, settings, failure=failure)
    assert store.embeddings.snapshot().versions == {}


@pytest.mark.slow
def test_vectors_of_a_real_training_job_with_labels_and_encoder(dispatching, store, settings):
    job, _ = store.jobs.submit(NewJob("train", document(epochs=3, track=False), "x", "synthetic", memory_bytes=10**9))
    dispatching(commands=JobCommands(settings))
    done = ended(store, job.id, 200)
    assert done.state == "succeeded", done.failure_message
    embedding, _ = published(store, job.id, seconds=120)
    assert (embedding.about["rows"], embedding.about["dim"], embedding.about["has_encoder"]) == (400, 8, True)
    assert embedding.about["classes"]
    run = settings.run_directory(job.id)
    names = json.loads((run / "embeddings" / "manifest.json").read_text())["files"]
    assert {"vectors.npy", "labels.npy", "encoder.safetensors"} <= names.keys()
    assert contents(settings.version_directory(job.id), names) == contents(run / "embeddings", names)
    assert embedding.metrics == done.result["metrics"]


@pytest.mark.parametrize("runner", ["local", "ray"])
def test_an_index_asks_for_no_more_memory_than_a_dispatcher_gives_out(store, settings, runner):
    large = {"rows": 10_000_000, "dim": 256}
    given = settings.model_copy(update={"runner": runner, "memory_limit": "1GB"})
    job = index_job(ready(store), "hnsw", large, most=most_memory(given))
    need = index_memory(large["rows"], large["dim"], "hnsw")
    assert job.memory_bytes == (10**9 if runner == "local" else need)
    assert index_job(ready(store), "hnsw", {"rows": 1_000, "dim": 8}, most=10**12).memory_bytes < 10**12
