"""Completing a graph on disk: its fingerprint, the checksums of its files, and the manifest that holds them.

Works on arrays in files, in pieces and without torch, so that tables of any size become a graph with neither.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.manifest import FORMAT
from trainer.files.atomic import sha256
from trainer.files.mapped import Maps, pieces

Progress = Callable[[str, float], None]  # what is being done, and how much of it is, from 0 to 1
Arrays = Mapping[str, NDArray[Any]]
_TEXT_ID_BYTES = 200  # about what an id costs as a Python string beside its place in the array


def seal(
    directory: Path,
    *,
    name: str,
    num_features: int,
    classes: Sequence[str] = (),
    notes: Sequence[str] = (),
    progress: Progress | None = None,
) -> None:
    """Write the manifest of a directory whose .npy files are complete: reads each of them twice, in pieces."""
    paths = sorted(directory.glob("*.npy"))
    arrays = {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in paths}
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "name": name,
        "num_nodes": len(arrays["indptr"]) - 1,
        "num_edges": len(arrays["indices"]),
        "num_features": num_features,
        "classes": list(classes),
        "notes": list(notes),
    }
    tell(progress, "fingerprint", 0)
    manifest["fingerprint"] = fingerprint(arrays, num_features, release=Maps(tuple(arrays.values())).release)
    checksums = checksums_of(paths, progress)
    manifest["arrays"] = {
        path.stem: {
            "dtype": arrays[path.stem].dtype.str,
            "shape": arrays[path.stem].shape,
            "sha256": checksums[path],
        }
        for path in paths
    }
    (directory / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False), encoding="utf-8")


def fingerprint(arrays: Arrays, num_features: int, *, release: Callable[[], None]) -> str:
    """SHA-256 over structure, features and ids: what embeddings depend on, so neither labels nor name.

    arrays: by the names of their files; others than those three are ignored. Walked in pieces, however large;
    release: called after each, to give back what reading a map took.
    """
    digest = hashlib.sha256()
    for part, array in _trained_on(arrays, num_features):
        text = array.dtype.kind == "U"
        digest.update(f"{part} {'text' if text else array.dtype.str} {array.shape};".encode())
        for piece in pieces(array, row_bytes=_TEXT_ID_BYTES + array.itemsize if text else None):
            if text:  # not the raw bytes: their width depends on the longest id
                digest.update("".join(f"{len(i)}:{i}" for i in piece.tolist()).encode())
            else:
                digest.update(piece.reshape(-1).view(np.uint8).data)
            release()
    return digest.hexdigest()


def _trained_on(arrays: Arrays, num_features: int) -> Iterator[tuple[str, NDArray[Any]]]:
    yield "indptr", arrays["indptr"]
    yield "indices", arrays["indices"]
    if "weight" in arrays:
        yield "weight", arrays["weight"]
    if "x" in arrays:
        yield "x", arrays["x"]
    else:
        yield "x.indptr", arrays["x_indptr"]
        yield "x.indices", arrays["x_indices"]
        yield f"x[{num_features}]", arrays["x_values"]
    yield "ids", arrays["ids"]


def checksums_of(paths: list[Path], progress: Progress | None) -> dict[Path, str]:
    """SHA-256 of each file; its size in bytes is what progress counts."""
    sizes = [path.stat().st_size for path in paths]
    result, done = {}, 0
    for path, size in zip(paths, sizes, strict=True):
        tell(progress, f"checksum of {path.name}", done / sum(sizes))
        result[path] = sha256(path)
        done += size
    return result


def tell(progress: Progress | None, what: str, share: float) -> None:
    """Call `progress` if there is one."""
    if progress is not None:
        progress(what, share)
