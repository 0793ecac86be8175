"""The document of a data set (service.api.dataset_schemas), from what is on disk or in the store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from service.datasets.imports import ABOUT
from service.store.clock import moment
from service.store.records import Dataset
from trainer.data.datasets import DatasetInfo, imported_directory

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
