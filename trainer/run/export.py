"""Embeddings on disk, by the user's own node ids: vectors.npy, ids.* and a manifest with checksums."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from trainer.errors import InvalidInput, NonFinite
from trainer.graph import Graph
from trainer.run.atomic import sha256, write_atomically, write_json


def export_embeddings(directory: Path, vectors: np.ndarray, graph: Graph, **provenance: Any) -> Path:
    """Write float32 vectors [N, d] with ids in the same order; the manifest comes last and vouches for both.

    Integer ids go to ids.npy, string ids to ids.json: neither needs unpickling.

    Raises:
        NonFinite: a vector holds NaN or infinity.
    """
    bad = ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        node = graph.ids[int(bad.argmax())]
        raise NonFinite(f"{int(bad.sum())} embeddings are not finite, first that of node {node!r}. Lower optimiser.lr.")
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    vectors_file = directory / "vectors.npy"
    (directory / "manifest.json").unlink(missing_ok=True)  # it must never vouch for files of an earlier export
    write_atomically(vectors_file, lambda path: _save(path, vectors))
    if graph.ids.dtype.kind == "i":
        ids_file = directory / "ids.npy"
        write_atomically(ids_file, lambda path: _save(path, graph.ids))
    else:
        ids_file = directory / "ids.json"
        write_json(ids_file, graph.ids.tolist())
    manifest = {
        "rows": len(vectors), "dim": vectors.shape[1], "dtype": "float32",
        "id_type": "int" if ids_file.suffix == ".npy" else "str",
        "files": {file.name: sha256(file) for file in (vectors_file, ids_file)}, **provenance,
    }  # fmt: skip
    write_json(directory / "manifest.json", manifest)
    return vectors_file


def read_embeddings(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """Memory-mapped vectors and the ids of their rows.

    Raises:
        InvalidInput: there is no finished export, or a file is not the one the manifest vouches for.
    """
    manifest_file = directory / "manifest.json"
    if not manifest_file.exists():
        raise InvalidInput(f"{directory}: holds no finished embeddings. Finish the run with `nml train --resume`.")
    manifest = json.loads(manifest_file.read_text(encoding="utf-8"))
    for name, checksum in manifest["files"].items():
        if sha256(directory / name) != checksum:
            raise InvalidInput(f"{directory / name}: differs from the checksum in manifest.json. Export it again.")
    vectors = np.load(directory / "vectors.npy", mmap_mode="r", allow_pickle=False)
    if manifest["id_type"] == "int":
        return vectors, np.load(directory / "ids.npy", allow_pickle=False)
    return vectors, np.array(json.loads((directory / "ids.json").read_text(encoding="utf-8")))


def _save(path: Path, array: np.ndarray) -> None:
    with path.open("wb") as file:  # np.save on a path would append .npy to the temporary name
        np.save(file, array, allow_pickle=False)
