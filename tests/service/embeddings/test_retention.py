"""What goes: versions that the rules no longer keep, and what killed processes left; and what must stay."""

from __future__ import annotations

import fcntl
import os
import shutil
import time

import pytest

from service import discarded
from service.embeddings.jobs import publish_job
from service.embeddings.retention import remove_version, retire, sweep_versions
from service.settings import Settings
from service.store import open_store
from service.store.errors import InUse
from service.store.records import NewJob
from tests.service.store.published import end_publishing, indexing_job, publishing_job, ready, trained


@pytest.fixture
def settings(tmp_path):
    return Settings(home=tmp_path / "home")


@pytest.fixture
def store(settings):
    opened = open_store(settings)
    yield opened
    opened.close()


def folder(settings, name, *, age=0.0):
    """A folder with a file in it, last written `age` seconds ago."""
    made = settings.embeddings / name
    made.mkdir(parents=True)
    (made / "vectors.npy").write_bytes(b"x")
    os.utime(made, (time.time() - age,) * 2)
    return made


def left(settings):
    return sorted(path.name for path in settings.embeddings.iterdir())


def test_retired_versions_go_with_their_files_and_names(store, settings):
    made = [ready(store).version for _ in range(4)]
    for version in made:
        folder(settings, version)
    store.aliases.move("prod", made[0], owner=None)
    assert retire(store, settings) == []
    keeping = settings.model_copy(update={"retain_versions": 1})
    assert retire(store, keeping) == made[1:3]
    assert left(settings) == sorted([made[0], made[3]])
    assert set(store.embeddings.snapshot().versions) == {made[0], made[3]}
    assert retire(store, keeping) == []


def test_retired_by_age(store, settings):
    old, new = ready(store).version, ready(store).version
    folder(settings, old)
    aged = settings.model_copy(update={"retain_days": 1e-9})
    time.sleep(0.01)
    sweep_versions(store, aged)
    assert left(settings) == []
    assert list(store.embeddings.snapshot().versions) == [new]  # the newest stays, however old


def test_one_that_is_pointed_to_keeps_its_files(store, settings):
    version = ready(store).version
    folder(settings, version)
    store.aliases.move("prod", version, owner=None)
    with pytest.raises(InUse, match="prod"):
        remove_version(version, store, settings)
    assert left(settings) == [version]


def test_files_that_a_killed_process_left_of_a_deleted_version_are_swept(store, settings):
    job = trained(store)
    store.jobs.cancel(store.embeddings.get(job.id).job_id)
    folder(settings, job.id)
    store.embeddings.delete(job.id)  # killed here
    folder(settings, f".{job.id}.0123456789ab.deleted")  # or there
    sweep_versions(store, settings)
    assert left(settings) == []
    folder(settings, job.id)  # by a process that nobody knew to be alive
    sweep_versions(store, settings)
    assert left(settings) == []


def test_a_version_that_was_published_anew_keeps_its_files(store, settings):
    job = trained(store)
    store.jobs.cancel(store.embeddings.get(job.id).job_id)
    store.embeddings.delete(job.id)
    store.embeddings.create(job, publish_job(job))
    folder(settings, job.id)
    sweep_versions(store, settings)
    assert left(settings) == [job.id]


def test_folders_that_this_database_has_never_known_stay(store, settings):
    """They are another database's: one started by mistake with an empty one must not empty the disk."""
    folder(settings, "01k9vect0rs000000000000000", age=10**6)
    sweep_versions(store, settings)
    assert left(settings) == ["01k9vect0rs000000000000000"]


def test_temporary_folders_go_once_nobody_can_be_writing_to_them(store, settings):
    publishing = trained(store).id
    names = {
        f".{publishing}.0123456789ab": 10**6, ".01k9vect0rs000000000000000.0123456789ab": 10.0,
        ".01k9vect0rs000000000000001.0123456789ab": 4_000.0, "notes.0123456789ab": 10**6,
    }  # fmt: skip
    for name, age in names.items():
        folder(settings, name, age=age)
    sweep_versions(store, settings)
    assert left(settings) == sorted(names.keys() - {".01k9vect0rs000000000000001.0123456789ab"})


def test_others_can_write_while_the_files_of_a_version_are_removed(store, settings, monkeypatch):
    version = ready(store).version
    folder(settings, version)
    really, submitted = shutil.rmtree, []

    def slowly(path, **options):
        submitted.append(store.jobs.submit(NewJob("train", {}, "hash", "digits"))[0].id)
        really(path, **options)

    monkeypatch.setattr(discarded.shutil, "rmtree", slowly)
    remove_version(version, store, settings)
    assert len(submitted) == 1
    assert left(settings) == []


def temporary(place, name, *, age=4_000.0):
    path = place / name
    path.write_bytes(b"x")
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_files_that_a_killed_builder_left_in_a_version_go_once_nobody_can_be_writing_to_them(store, settings):
    version, indexed = ready(store).version, ready(store).version
    store.embeddings.build_index(indexed, "hnsw", indexing_job(indexed))
    place, other = folder(settings, version), folder(settings, indexed)
    gone = [temporary(place, ".index.hnsw.faiss.77.tmp"), temporary(place, ".download.parquet.tmp")]
    kept = [
        temporary(other, ".index.hnsw.faiss.78.tmp"), temporary(place, ".index.ivf.faiss.79.tmp", age=10.0),
        temporary(place, "vectors.npy"), temporary(place, "notes.tmp"),
    ]  # fmt: skip
    with gone[1].open("rb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # as whoever makes the download holds it
        sweep_versions(store, settings)
        assert [path.exists() for path in gone] == [False, True]
    sweep_versions(store, settings)
    assert not any(path.exists() for path in gone)
    assert all(path.exists() for path in kept)


def job_folder(settings, job_id):
    made = settings.job_directory(job_id)
    made.mkdir(parents=True)
    (made / "spec.json").write_text("{}")
    return made


def test_the_jobs_that_made_a_version_go_with_it(store, settings):
    kept, version = ready(store), ready(store).version
    embedding, _ = store.embeddings.build_index(version, "hnsw", indexing_job(version))
    made = [embedding.job_id, embedding.indexes["hnsw"]["job"]]
    store.jobs.cancel(made[1])
    store.embeddings.finish_index(version, "hnsw", made[1], failure="cancelled")
    folders = [job_folder(settings, job_id) for job_id in (*made, kept.job_id)]
    remove_version(version, store, settings)
    assert [store.jobs.get(job_id) for job_id in made] == [None, None]
    assert store.events.after(made[0], 0) == []
    assert [path.exists() for path in folders] == [False, False, True]
    assert store.jobs.get(kept.job_id) is not None
    assert store.jobs.get(version) is not None  # the training job is the user's to delete


def test_jobs_of_deleted_versions_that_were_not_deleted_with_them_are_swept(store, settings):
    job = trained(store)
    first = store.embeddings.get(job.id).job_id
    store.jobs.cancel(first)
    second = store.embeddings.create(job, publishing_job(job.id))[0].job_id  # takes the place of the first
    end_publishing(store, job)
    folder(settings, job.id)
    path = job_folder(settings, first)
    store.embeddings.delete(job.id)  # killed here
    third = store.embeddings.create(job, publishing_job(job.id))[0]
    sweep_versions(store, settings)
    assert store.jobs.get(first) is not None  # the version is there again
    store.jobs.cancel(third.job_id)
    store.embeddings.delete(job.id)
    sweep_versions(store, settings)
    assert [store.jobs.get(job_id) for job_id in (first, second, third.job_id)] == [None] * 3
    assert not path.exists()
