"""A graph on disk: a directory of .npy files and a manifest.json that says what should be in them.

No pickles, so a graph from a stranger is data and never code. Files open memory-mapped.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.features import csr
from trainer.errors import InvalidInput
from trainer.graph import SPLITS, Graph

FORMAT = 1


def save(graph: Graph, directory: Path) -> None:
    """Write beside the place and rename, so that a reader never meets half a graph. See `Graph.save`."""
    if directory.exists():
        raise FileExistsError(f"{directory} already exists")
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = directory.with_name(f".{directory.name}.{secrets.token_hex(6)}")
    partial.mkdir()
    try:
        arrays = _arrays(graph)
        for key, array in arrays.items():
            np.save(partial / f"{key}.npy", array, allow_pickle=False)
        manifest = {
            "format": FORMAT,
            "name": graph.name,
            "num_nodes": graph.num_nodes,
            "num_edges": graph.num_edges,
            "num_features": graph.num_features,
            "classes": graph.classes,
            "notes": graph.notes,
            "arrays": {key: {"dtype": array.dtype.str, "shape": array.shape} for key, array in arrays.items()},
        }
        (partial / "manifest.json").write_text(json.dumps(manifest, indent=1, ensure_ascii=False), encoding="utf-8")
        try:
            os.rename(partial, directory)
        except OSError as error:
            if directory.exists():  # another process was faster
                raise FileExistsError(f"{directory} already exists") from error
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load(directory: Path, *, mmap: bool) -> Graph:
    """See `Graph.open`."""
    try:
        manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise InvalidInput(
                f"{directory}: graph format {manifest['format']}, this version reads {FORMAT}. Save it anew."
            )
        arrays = {key: _read(directory / f"{key}.npy", form, mmap) for key, form in manifest["arrays"].items()}
        return _graph(manifest, arrays)
    except (OSError, KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"{directory}: not a saved graph ({type(error).__name__}: {error}). Save it anew."
        ) from error


def _arrays(graph: Graph) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {
        "indptr": graph.indptr.numpy(),
        "indices": graph.indices.numpy(),
        "ids": graph.ids,
    }
    if graph.x.layout == torch.sparse_csr:
        arrays["x_indptr"] = graph.x.crow_indices().numpy()
        arrays["x_indices"] = graph.x.col_indices().numpy()
        arrays["x_values"] = graph.x.values().numpy()
    else:
        arrays["x"] = graph.x.numpy()
    if graph.weight is not None:
        arrays["weight"] = graph.weight.numpy()
    if graph.y is not None:
        arrays["y"] = graph.y.numpy()
    if graph.split is not None:
        arrays |= {key: graph.split[key].numpy() for key in SPLITS}
    return arrays


def _graph(manifest: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Graph:
    tensors = {key: _tensor(array) for key, array in arrays.items() if key != "ids"}
    x = tensors.get("x")
    if x is None:
        shape = (manifest["num_nodes"], manifest["num_features"])
        x = csr(tensors["x_indptr"], tensors["x_indices"], tensors["x_values"], shape)
    return Graph(
        name=manifest["name"],
        indptr=tensors["indptr"],
        indices=tensors["indices"],
        x=x,
        ids=arrays["ids"],
        weight=tensors.get("weight"),
        y=tensors.get("y"),
        classes=tuple(manifest["classes"]),
        split={key: tensors[key] for key in SPLITS} if "train" in tensors else None,
        notes=tuple(manifest["notes"]),
    )


def _read(path: Path, form: dict[str, Any], mmap: bool) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InvalidInput(f"{path}: cut short or damaged ({error}). Save the graph anew.") from error
    if array.dtype.str != form["dtype"] or list(array.shape) != list(form["shape"]):
        raise InvalidInput(
            f"{path}: holds {array.dtype.str} of shape {list(array.shape)}, the manifest says {form['dtype']} of "
            f"{form['shape']}. Save the graph anew."
        )
    return array


def _tensor(array: NDArray[Any]) -> Tensor:
    """Share the array's memory. Read-only maps are what we want: a private writable one would count as used memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
