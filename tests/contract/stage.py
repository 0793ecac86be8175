"""A service with a bit of everything in it: jobs and sweeps in every state, with what they tell and leave; data sets;
two versions of embeddings, and an alias that points to one.

Ids are the states' names, so that tests can ask for them without having looked. `furnish` may be called again at any
time: it puts back what was deleted or has changed.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from service.embeddings.jobs import about_version, publish_job
from service.embeddings.layout import read_info
from service.settings import Settings
from service.store import Store
from service.store.records import Claim, Job, NewEvent, NewJob
from tests.service.api.embeddings.published import put_job
from tests.service.api.server import SMALL
from tests.service.embeddings.tables import make_export, publish
from trainer.config import parse_spec, spec_hash
from tuner.config import parse_sweep, sweep_hash
from tuner.journal import Journal

JOBS = ("queued", "running", "cancelling", "succeeded", "failed", "cancelled")
SWEEPS = tuple(f"sweep-{state}" for state in ("queued", "running", "succeeded", "cancelled"))
FIGURES = ("loss.png", "weights.svg", "search.html", "absent.png")
EMBEDDINGS = ("vectors.npy", "ids.npy", "ids.json", "manifest.json")
READY, CHECKING, REFUSED = "papers.aaaaaaaaaaaa", "papers.bbbbbbbbbbbb", "papers.cccccccccccc"
DATASETS = (READY, CHECKING, REFUSED)
VERSION, SPARE = "01k9vect0rs000000000000000", "01k9vect0rs000000000000001"  # an alias points to the first
NODE, ALIAS = "7", "production"
ABOUT = {
    "nodes": 4, "edges": 6, "features": 2, "classes": 0, "sparse": False, "weighted": False, "fingerprint": "f" * 64,
    "degree": {"min": 1, "median": 1.5, "mean": 1.5, "max": 2, "isolated": 0, "quantiles": {"0.5": 1.5}},
    "notes": ["2 self-loops were removed"],
}  # fmt: skip
SWEEP = {
    "base": SMALL,
    "space": {"method.temperature": {"kind": "uniform", "low": 0.2, "high": 0.9}},
    "trials": 4,
    "concurrency": 1,
}
OWNER = "stage"  # of leases; also the dispatcher that /readyz wants to see
FIRST = 101  # beyond what clients may ask for, so that ours is claimed first


def furnish(store: Store, settings: Settings) -> None:
    """Make it so, as far as it is not."""
    store.dispatchers.beat(OWNER, host="here", pid=os.getpid(), info={})
    for job_id in (*JOBS, *SWEEPS):
        _put_job(store, settings, job_id)
    for ref in DATASETS:
        _put_dataset(store, ref)
    for version in (VERSION, SPARE):
        _put_version(store, settings, version)
    store.aliases.move(ALIAS, VERSION, owner=None)


def _put_job(store: Store, settings: Settings, job_id: str) -> None:
    state = job_id.removeprefix("sweep-")
    job = store.jobs.get(job_id)
    if job is not None and job.state == state:
        return
    if job is not None:
        _remove(store, job)
    new = _new_sweep() if job_id in SWEEPS else _new_job()
    if state == "queued":
        store.jobs.submit(new, job_id=job_id)
        return
    store.jobs.submit(replace(new, priority=FIRST), job_id=job_id)
    claimed = store.claims.claim(OWNER, kinds=(new.kind,), lease_seconds=3_600)
    assert claimed is not None
    assert claimed.id == job_id
    claim = Claim.on(claimed)
    store.claims.record(
        claim, _events(), progress=_progress(), metrics={"epoch": 3, "loss": 0.5}, mlflow_run_id="0" * 32
    )
    _leave_files(claimed, settings)
    match state:
        case "cancelling":
            store.jobs.cancel(job_id)
        case "succeeded":
            store.claims.finish(claim, "succeeded", result={"figures": list(FIGURES), "embeddings": True})
        case "failed":
            store.claims.finish(claim, "failed", failure_kind="oom", failure_message="it needs 9.0 GB")
        case "cancelled":
            store.claims.finish(claim, "cancelled")


def _remove(store: Store, job: Job) -> None:
    if job.state == "queued":
        store.jobs.cancel(job.id)
    elif not job.is_terminal:
        store.claims.finish(Claim.on(job), "cancelled")
    store.jobs.delete(job.id)


def _new_job() -> NewJob:
    spec = parse_spec(SMALL)
    document = spec.model_dump(mode="json")
    return NewJob("train", document, spec_hash(spec), "synthetic", memory_bytes=1, name="for tests")


def _new_sweep() -> NewJob:
    spec = parse_sweep(SWEEP)
    return NewJob("sweep", spec.model_dump(mode="json"), sweep_hash(spec), "synthetic")


def _events() -> list[NewEvent]:
    epochs = [NewEvent("epoch", {"metrics": {"loss": 1 / epoch, "note": "fine"}}, epoch) for epoch in (1, 2, 3)]
    return [NewEvent("start", {"device": "cpu"}), *epochs, NewEvent("rewind", {"epoch": 2}), epochs[-1]]


def _progress() -> dict[str, Any]:
    return {"phase": "train", "epoch": 3, "epochs": 3, "share": 0.9, "epochs_per_second": 2.5, "eta_seconds": 1.0}


def _leave_files(job: Job, settings: Settings) -> None:
    run = settings.run_directory(job.id)
    content = {
        "log.txt": b"epoch 1\nbad \xff byte\n", "embeddings/vectors.npy": bytes(range(200)),
        "embeddings/ids.json": b'["a", "b"]', "embeddings/manifest.json": b'{"files": {}}',
        "figures/loss.png": b"\x89PNG", "figures/weights.svg": b"<svg/>", "figures/search.html": b"<p>found</p>",
    }  # fmt: skip
    if job.kind == "sweep" and not (run / "events.jsonl").exists():
        _write_journal(run, job)  # first: it wants an empty folder
    for name, data in content.items():
        _write(run / name, data)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _write_journal(run: Path, job: Job) -> None:
    journal = Journal.open(run, parse_sweep(job.spec))
    for number, value in enumerate([0.5, 0.7, None]):
        journal.record("trial", number=number, origin="search", changes={"method.temperature": 0.3 + number / 10})
        state, values = ("failed", []) if value is None else ("finished", [value])
        journal.record("done", number=number, state=state, value=value, values=values, epoch=3, seconds=1.0, error=None)
    journal.record("trial", number=3, origin="search", changes={"method.temperature": 0.6})
    journal.close()


def _put_dataset(store: Store, ref: str) -> None:
    """One that is ready, one that is being checked, one that was refused."""
    row = store.datasets.get(ref)
    if row is not None and (row.state == "checking") == (ref == CHECKING):
        return
    if row is not None:
        store.datasets.delete(ref)
    name, _, version = ref.partition(".")
    job = NewJob("import", {"upload": "0" * 32}, spec_hash="h", dataset=ref)
    made, _ = store.datasets.create(name, version, options={}, size=100, job=job)
    if ref == READY:
        store.datasets.finish(ref, made.job_id, about=ABOUT)
    elif ref == REFUSED:
        store.datasets.finish(ref, made.job_id, failure="nodes.csv, row 3: no number")


def _put_version(store: Store, settings: Settings, version: str) -> None:
    """Ids from 0 to 11, in 6 dimensions, with labels; no index, whatever was asked for."""
    row = store.embeddings.get(version)
    if row is None or row.state != "ready":
        if not settings.run_directory(version).exists():
            make_export(settings.run_directory(version), 12, 6, labels=2)
        job = store.jobs.get(version)
        if job is None:
            put_job(store, version)
        else:
            store.embeddings.create(job, publish_job(job))
        row = store.embeddings.get(version)
        assert row is not None
        folder = publish(settings.run_directory(version), settings.home, version)
        store.embeddings.finish(version, row.job_id, about=about_version(read_info(folder)))
        store.jobs.cancel(row.job_id)
    for kind, entry in row.indexes.items():
        if entry["state"] == "building":
            store.jobs.cancel(entry["job"])
            store.embeddings.finish_index(version, kind, entry["job"], failure="not needed")
