"""What becomes of uploaded files: handed to their import, removed after it, swept away where a process died."""

from __future__ import annotations

import os
import time

import pytest

from service.datasets.imports import conclude_import, settled
from service.datasets.uploads import LEFT_SECONDS, Upload, discard, sweep_uploads
from service.discarded import discard as discard_folder
from service.discarded import sweep_discarded
from service.settings import Settings
from service.store import Store
from service.store.records import Claim, Dataset, NewJob


def filled(settings: Settings, *, age: float = 0.0) -> str:
    """An upload with a file in it, last written to so many seconds ago."""
    upload = Upload(settings)
    part = upload.open("npz", "graph.npz")
    part.write(memoryview(b"content"))
    upload.close(part)
    upload.settle()
    moment = time.time() - age
    for path in (upload.folder / "graph.npz", upload.folder):
        os.utime(path, (moment, moment))
    return upload.id


def registered(store: Store, upload: str, name: str = "a") -> Dataset:
    spec = {"ref": f"{name}.0123456789ab", "upload": upload}
    job = NewJob("import", spec, spec_hash="h", dataset=f"{name}.0123456789ab")
    return store.datasets.create(name, "0123456789ab", options={}, size=7, job=job)[0]


def test_only_old_uploads_that_no_import_needs_are_swept(settings: Settings, store: Store):
    old = LEFT_SECONDS + 60
    fresh, left, waiting, running, done = (filled(settings, age=age) for age in (0, old, old, old, old))
    dataset = registered(store, running, "running")
    assert store.claims.claim("me", kinds=("import",), lease_seconds=60) is not None
    ended = registered(store, done, "done")
    store.jobs.cancel(ended.job_id)
    registered(store, waiting, "waiting")
    (settings.uploads / "notes").mkdir()  # not ours
    assert set(sweep_uploads(settings, store)) == {left, done}
    assert {path.name for path in settings.uploads.iterdir()} == {fresh, waiting, running, "notes"}
    assert dataset.state == "checking"
    assert sweep_uploads(settings, store) == []


def test_an_upload_that_is_still_written_to_is_not_old(settings: Settings, store: Store):
    upload = filled(settings, age=LEFT_SECONDS + 60)
    os.utime(settings.uploads / upload / "graph.npz")  # a slow client, for more than a day
    assert sweep_uploads(settings, store) == []


def test_sweeping_where_nothing_was_ever_uploaded_does_nothing(settings: Settings, store: Store):
    assert sweep_uploads(settings, store) == []
    sweep_discarded(settings.graphs)


@pytest.mark.parametrize("upload", ["", ".", "..", "../runs", "a" * 32 + "/..", "x" * 32])
def test_only_uploads_can_be_discarded(settings: Settings, upload):
    (settings.home / "runs").mkdir(parents=True)
    with pytest.raises(ValueError, match="is no upload"):
        discard(settings, upload)
    assert (settings.home / "runs").exists()


def test_the_end_of_an_import_can_be_told_twice(settings: Settings, store: Store):
    upload = filled(settings)
    dataset = registered(store, upload)
    job = store.claims.claim("me", kinds=("import",), lease_seconds=60)
    assert job is not None
    for _ in range(2):  # a dispatcher was killed before it ended the job, and another one begins again
        conclude_import(job, store, settings, failure="nodes.csv, row 3: wrong")
    store.claims.finish(Claim.on(job), "failed", failure_kind="invalid", failure_message="nodes.csv, row 3: wrong")
    found = store.datasets.get(dataset.ref)
    assert found is not None
    assert (found.state, found.failure) == ("failed", "nodes.csv, row 3: wrong")
    assert not list(settings.uploads.iterdir())
    again = registered(store, filled(settings))
    conclude_import(job, store, settings, failure="late word of the first import")
    assert store.datasets.get(again.ref) == again  # of which the first import no longer decides


def test_what_the_importer_found_becomes_known(settings: Settings, store: Store):
    dataset = registered(store, filled(settings))
    job = store.claims.claim("me", kinds=("import",), lease_seconds=60)
    assert job is not None
    with pytest.raises(FileNotFoundError):  # it cannot have succeeded
        conclude_import(job, store, settings, failure=None)
    (settings.graphs / dataset.ref).mkdir(parents=True)
    (settings.graphs / dataset.ref / "about.json").write_text('{"nodes": 3}')
    conclude_import(job, store, settings, failure=None)
    ready = store.datasets.get(dataset.ref)
    assert ready is not None
    assert (ready.state, ready.about) == ("ready", {"nodes": 3})


def test_a_check_without_a_job_has_failed(settings: Settings, store: Store):
    dataset = registered(store, filled(settings))
    assert settled(dataset, store) == dataset
    store.jobs.cancel(dataset.job_id)
    store.jobs.delete(dataset.job_id)
    assert settled(dataset, store).state == "failed"
    assert settled(dataset, store).state == "failed"


def test_a_graph_that_was_being_removed_when_the_service_died_is_removed_later(settings: Settings):
    graph = settings.graphs / "a.0123456789ab"
    graph.mkdir(parents=True)
    (settings.graphs / ".a.0123456789ab.c0ffee.deleted").mkdir()
    (settings.graphs / ".b.0123456789ab.c0ffee").mkdir()  # an import under way
    sweep_discarded(settings.graphs)
    assert sorted(path.name for path in settings.graphs.iterdir()) == [".b.0123456789ab.c0ffee", graph.name]
    for _ in range(2):
        discard_folder(graph)
    assert [path.name for path in settings.graphs.iterdir()] == [".b.0123456789ab.c0ffee"]
