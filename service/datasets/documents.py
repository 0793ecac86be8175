"""A data set as clients read it: one shape for built-in, public, imported and uploaded ones; null: not known."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from service.api.responses import moment
from service.api.schemas import Document, Moment
from service.datasets.imports import ABOUT
from service.store.records import Dataset
from trainer.data.datasets import DatasetInfo, imported_directory


class Degree(Document):
    """How many edges go into a node, as stored: an undirected edge goes into both its ends."""

    min: int
    median: float
    mean: float
    max: int
    isolated: int = Field(description="nodes without an edge in either direction")
    quantiles: dict[str, float] = Field(description="by share of nodes, such as 0.95")


class Version(Document):
    """One version of a data set that was uploaded under this name."""

    ref: str
    state: Literal["checking", "ready", "failed"]
    created: Moment


class DatasetDocument(Document):
    """A graph that jobs can name."""

    name: str = Field(examples=["papers"])
    ref: str = Field(description="names one version for good, if there are some", examples=["papers.3f2a9c01d7be"])
    kind: Literal["builtin", "public", "generator", "imported", "uploaded"] = Field(
        description="public: downloaded when first used; imported: on the command line of the service's machine"
    )
    state: Literal["checking", "ready", "failed"]
    nodes: int | None
    edges: int | None = Field(description="directed ones, as stored: an undirected edge counts twice")
    features: int | None
    classes: int | None = Field(description="of the labels; 0: there are none")
    sparse: bool | None = Field(description="whether at most a quarter of the features is not zero")
    weighted: bool | None
    degree: Degree | None
    bytes: int | None = Field(description="uploaded, or on disk")
    fingerprint: str | None = Field(description="SHA-256 of structure, features and ids")
    notes: list[str] = Field(description="what was normalised on the way in")
    options: dict[str, Any] | None = Field(description="how the upload was read")
    created: Moment | None
    owner: str | None = Field(description="id of the key that uploaded it")
    job: str | None = Field(description="the job that checks it")
    offline: bool = Field(description="whether a job finds it without a network")
    failure: str | None = Field(description="why it was refused")
    versions: list[Version] | None = Field(description="of this name, newest first; null in lists")


class DatasetPage(Document):
    """Some data sets: those that are always there, then imported ones, then uploaded ones."""

    items: list[DatasetDocument]
    next: str | None = Field(description="as `cursor`, gives the next page; null on the last")


_KNOWN = ("nodes", "edges", "features", "classes", "sparse", "weighted", "degree", "fingerprint")


def known(info: DatasetInfo, *, home: Path) -> dict[str, Any]:
    """A set that no upload made."""
    document: dict[str, Any] = {
        "name": info.name, "ref": info.name, "kind": info.kind, "state": "ready", "nodes": info.nodes,
        "edges": info.edges, "features": info.features, "classes": info.classes, "sparse": None, "weighted": None,
        "degree": None, "bytes": None, "fingerprint": None, "notes": [], "options": None, "created": None,
        "owner": None, "job": None, "offline": info.offline, "failure": None, "versions": None,
    }  # fmt: skip
    if info.kind != "imported":
        return document
    if not info.offline:
        return document | {"state": "failed", "failure": "the stored graph is damaged; import it anew"}
    folder = imported_directory(info.name, home)
    try:
        with os.scandir(folder) as entries:
            size = sum(entry.stat().st_size for entry in entries if entry.name != ABOUT)
        created = (folder / "manifest.json").stat().st_mtime
    except OSError:  # removed in this moment
        return document
    return document | {"bytes": size, "created": moment(created)}


def uploaded(dataset: Dataset, versions: list[Dataset] | None = None) -> dict[str, Any]:
    """One version of an uploaded set.

    Args:
        versions: all of its name, to be told with it.
    """
    about = dataset.about or {}
    document: dict[str, Any] = {key: about.get(key) for key in _KNOWN}
    listed = None
    if versions is not None:
        listed = [{"ref": one.ref, "state": one.state, "created": moment(one.created)} for one in versions]
    return {
        "name": dataset.name, "ref": dataset.ref, "kind": "uploaded", "state": dataset.state, **document,
        "bytes": dataset.bytes, "notes": about.get("notes") or [], "options": dataset.options,
        "created": moment(dataset.created), "owner": dataset.owner, "job": dataset.job_id,
        "offline": dataset.state == "ready", "failure": dataset.failure, "versions": listed,
    }  # fmt: skip
