"""A graph on disk: a directory of .npy files and a manifest.json that says what should be in them.

No pickles, so a graph from a stranger is data and never code. Files open memory-mapped. The manifest holds the SHA-256
of every file and the graph's fingerprint, so that neither has to be worked out again to open a graph of any size.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.features import csr
from trainer.data.graph import SPLITS, Graph
from trainer.data.manifest import not_a_graph, read_manifest
from trainer.data.seal import Progress, checksums_of, fingerprint, seal, tell
from trainer.errors import InvalidInput
from trainer.files.mapped import Maps
from trainer.files.npy import write_npy
from trainer.files.whole_directory import whole_directory

Arrays = dict[str, NDArray[Any]]


def save(graph: Graph, directory: Path, *, replace: bool = False) -> None:
    """Write beside the place and rename, so that a reader never meets half a graph. See `Graph.save`."""
    with whole_directory(directory, replace=replace) as partial:
        for key, array in arrays_of(graph).items():
            write_npy(partial / f"{key}.npy", array, release=graph.release)
        seal(partial, name=graph.name, num_features=graph.num_features, classes=graph.classes, notes=graph.notes)


def load(directory: Path, *, mmap: bool) -> Graph:
    """See `Graph.open`. Looks at the manifest and at both ends of each index, not at everything: that is `verify`."""
    for _ in range(3):
        manifest, arrays = _read_all(directory, mmap)
        if read_manifest(directory) == manifest:  # else it was replaced while we read: take all from the new one
            break
    try:
        graph = _graph(manifest, arrays)
        object.__setattr__(graph, "_stored_fingerprint", manifest["fingerprint"])  # see the field
        return graph
    except (KeyError, TypeError) as error:
        raise not_a_graph(directory, error) from error


def verify(directory: Path, *, progress: Progress | None = None) -> None:
    """Read every file once, in pieces, and compare with the checksums of the manifest; then the fingerprint.

    Raises:
        InvalidInput: not a saved graph, or naming the file that is missing or damaged.
    """
    manifest, arrays = _read_all(directory, mmap=True)
    paths = {key: directory / f"{key}.npy" for key in arrays}
    found = checksums_of(list(paths.values()), progress)
    for key, path in paths.items():
        if found[path] != manifest["arrays"][key].get("sha256"):
            raise InvalidInput(f"{path}: damaged, its contents are not what was written. Import or save it anew.")
    tell(progress, "fingerprint", 0)
    release = Maps(tuple(arrays.values())).release
    if fingerprint(arrays, manifest["num_features"], release=release) != manifest.get("fingerprint"):
        raise InvalidInput(f"{directory / 'manifest.json'}: damaged, not this graph's fingerprint. Save it anew.")


def arrays_of(graph: Graph) -> Arrays:
    """A graph's arrays, shared and not copied, under the names of their files."""
    arrays: Arrays = {"indptr": graph.indptr.numpy(), "indices": graph.indices.numpy(), "ids": graph.ids}
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
    if graph.held_out is not None:
        arrays["held_out"] = graph.held_out.numpy()
    return arrays


def _graph(manifest: dict[str, Any], arrays: Arrays) -> Graph:
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
        held_out=tensors.get("held_out"),
        notes=tuple(manifest["notes"]),
        _maps=Maps(tuple(array for array in arrays.values() if isinstance(array, np.memmap))),
    )


def _read_all(directory: Path, mmap: bool) -> tuple[dict[str, Any], Arrays]:
    manifest = read_manifest(directory)
    try:
        arrays = {key: _read(directory / f"{key}.npy", form, mmap) for key, form in manifest["arrays"].items()}
        _check(directory, manifest, arrays)
    except (OSError, KeyError, TypeError, AttributeError) as error:
        raise not_a_graph(directory, error) from error
    return manifest, arrays


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


def _check(directory: Path, manifest: dict[str, Any], arrays: Arrays) -> None:
    """What costs nothing to check: that the arrays are of the right types and lengths and the indices fit together."""
    n, e, f = manifest["num_nodes"], manifest["num_edges"], manifest["num_features"]
    expected: dict[str, tuple[str, tuple[int, ...]]] = {
        "indptr": ("i8", (n + 1,)),
        "indices": ("i8", (e,)),
        "weight": ("f4", (e,)),
        "y": ("i8", (n,)),
        "ids": ("i8" if arrays["ids"].dtype.kind == "i" else arrays["ids"].dtype.str[1:], (n,)),
        "x": ("f4", (n, f)),
        "x_indptr": ("i8", (n + 1,)),
        "held_out": ("i8", (2, *arrays["held_out"].shape[-1:]) if "held_out" in arrays else ()),
    }
    for key, (dtype, shape) in expected.items():
        array = arrays.get(key)
        if array is not None and (array.dtype.str[1:], array.shape) != (dtype, shape):
            found = f"{array.dtype.str[1:]} of shape {list(array.shape)}"
            raise InvalidInput(
                f"{directory / key}.npy: {found} in a graph of {n} nodes, {e} edges and {f} features; it must be "
                f"{dtype} of {list(shape)}. Save the graph anew."
            )
    _check_ends(directory, "indptr", arrays["indptr"], e)
    if "x" not in arrays:
        stored = len(arrays["x_values"])
        _check_ends(directory, "x_indptr", arrays["x_indptr"], stored)
        _check_ends(directory, "x_indptr", arrays["x_indptr"], len(arrays["x_indices"]))


def _check_ends(directory: Path, key: str, indptr: NDArray[Any], end: int) -> None:
    if indptr[0] != 0 or indptr[-1] != end:
        raise InvalidInput(
            f"{directory / key}.npy: runs from {indptr[0]} to {indptr[-1]} instead of 0 to {end}. Save the graph anew."
        )


def _tensor(array: NDArray[Any]) -> Tensor:
    """Share the array's memory. Read-only maps are what we want: a private writable one would count as used memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
