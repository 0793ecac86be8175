"""The user's graph as one .npz file, read without pickles.

    edges      edge_index [2, E], or adj_indptr, adj_indices, adj_shape and optionally adj_data (row = source)
    features   x [N, F], or attr_indptr, attr_indices, attr_shape and optionally attr_data; none: structural ones
    optional   y or labels [N] (integers or text; -1 or empty: unlabelled), ids [N] (integers or text),
               edge_weight [E], train, val, test (node numbers or masks [N]), and notes (text, for people)

adj_data counts as weights unless all are 1. Positions in messages are numpy's, so the first is 0.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from trainer.data.sources.labels import MAX_TEXT, encode_labels, first_long
from trainer.errors import InvalidInput
from trainer.spec.data import FilesSpec

if TYPE_CHECKING:
    from trainer.data.graph import Graph

MAX_BYTES = 64 << 30  # unpacked; and never more than the machine's memory. A larger graph does not fit one npz anyway
Arrays = Mapping[str, NDArray[Any]]


def load(spec: FilesSpec) -> Graph:
    """Read `spec.npz`.

    Raises:
        InvalidInput: naming the file, the array, the first wrong position and what to change.
    """
    path = Path(spec.npz or "")
    arrays = _read(path)
    try:
        return _graph(arrays, path.stem, directed=spec.directed)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from error


def _graph(arrays: Arrays, name: str, *, directed: bool) -> Graph:
    edge_index, weight, square = _edges(arrays)
    x = _features(arrays)
    if x is not None and square not in (None, x.shape[0]):
        raise InvalidInput(f"adj_shape says {square} nodes, the features have {x.shape[0]} rows. They must agree.")
    told = square if x is None else int(x.shape[0])
    num_nodes = _nodes(arrays) if told is None else told
    given = arrays["y"] if "y" in arrays else arrays.get("labels")
    y, classes = (None, None) if given is None else encode_labels(_vector(given, "y or labels", num_nodes))
    from trainer.data.graph import Graph  # loads torch: not for a file that is known to be wrong

    return Graph.from_edges(
        edge_index,
        x,
        num_nodes=num_nodes,
        name=name,
        ids=_ids(arrays),
        weight=weight,
        y=y,
        classes=classes,
        split=_split(arrays, num_nodes),
        directed=directed,
        notes=[str(note) for note in arrays.get("notes", ())],
    )


def save(graph: Graph, path: Path) -> None:
    """Write a graph so that `load` gives it back, if `data.files.directed` is what its `is_directed` says."""
    arrays: dict[str, NDArray[Any]] = {"edge_index": graph.edge_index.numpy(), "ids": graph.ids}
    if graph.x.is_sparse_csr:
        arrays |= {
            "attr_indptr": graph.x.crow_indices().numpy(), "attr_indices": graph.x.col_indices().numpy(),
            "attr_data": graph.x.values().numpy(), "attr_shape": np.array(graph.x.shape),
        }  # fmt: skip
    else:
        arrays["x"] = graph.x.numpy()
    if graph.weight is not None:
        arrays["edge_weight"] = graph.weight.numpy()
    if graph.y is not None:
        arrays["y"] = np.array([*graph.classes, ""], dtype=np.str_)[graph.y.numpy()]  # -1: the last
    if graph.split is not None:
        arrays |= {part: nodes.numpy() for part, nodes in graph.split.items()}
    if graph.notes:
        arrays["notes"] = np.array(graph.notes, dtype=np.str_)
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _ids(arrays: Arrays) -> NDArray[Any] | None:
    ids = arrays.get("ids")
    row = first_long(ids) if ids is not None and ids.dtype.kind == "U" else None
    if row is not None:
        raise InvalidInput(f"ids: that of node {row} has more than {MAX_TEXT} characters. Shorten it.")
    return ids


def _edges(arrays: Arrays) -> tuple[NDArray[Any], NDArray[Any] | None, int | None]:
    if "edge_index" in arrays:
        weight = arrays.get("edge_weight")
        if weight is not None and weight.dtype.kind not in "biuf":
            raise InvalidInput(f"edge_weight has type {weight.dtype}; give numbers.")
        return arrays["edge_index"], weight, None
    if "adj_indptr" not in arrays:
        raise InvalidInput(
            f"neither edge_index nor adj_indptr is in it, only {_listed(arrays)}. Add edge_index, [2, E]."
        )
    indptr, indices, data, (rows, columns) = _compressed(arrays, "adj")
    if rows != columns:
        raise InvalidInput(f"adj_shape is ({rows}, {columns}); an adjacency matrix is square.")
    source = np.repeat(np.arange(rows), np.diff(indptr))
    weighted = data is not None and bool((data != 1).any())
    return np.stack([source, indices]), data if weighted else None, rows


def _features(arrays: Arrays) -> Any:
    if "x" in arrays:
        return arrays["x"]
    if "attr_indptr" not in arrays:
        return None
    from scipy.sparse import csr_matrix

    indptr, indices, data, shape = _compressed(arrays, "attr")
    return csr_matrix((np.ones(len(indices), np.float32) if data is None else data, indices, indptr), shape=shape)


def _nodes(arrays: Arrays) -> int:
    """How many nodes there are, where neither features nor an adjacency matrix say it."""
    for name in ("ids", "y", "labels"):
        if name in arrays and arrays[name].ndim == 1:
            return len(arrays[name])
    raise InvalidInput(
        f"neither x nor attr_indptr is in it, only {_listed(arrays)}. Add x, a row per node, or for a graph without "
        "features the ids of its nodes."
    )


def _compressed(arrays: Arrays, prefix: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None, tuple[int, int]]:
    """A matrix in compressed rows, checked; an index out of its bounds would read foreign memory later."""
    for part in ("indices", "shape"):
        if f"{prefix}_{part}" not in arrays:
            raise InvalidInput(f"{prefix}_indptr comes without {prefix}_{part}. Save all parts of the sparse matrix.")
    indptr, indices, shape = (arrays[f"{prefix}_{part}"] for part in ("indptr", "indices", "shape"))
    data = arrays.get(f"{prefix}_data")
    for part, array in (("indptr", indptr), ("indices", indices), ("shape", shape)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InvalidInput(
                f"{prefix}_{part} is {array.dtype} of shape {array.shape}; it must be a list of integers."
            )
    if shape.shape != (2,) or shape.min() < 0:
        raise InvalidInput(f"{prefix}_shape is {shape.tolist()}; it must be [rows, columns].")
    rows, columns = (int(n) for n in shape)
    indptr = indptr.astype(np.int64)
    if len(indptr) != rows + 1 or indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise InvalidInput(f"{prefix}_indptr must rise from 0 to {len(indices)} in {rows + 1} steps, and does not.")
    outside = (indices < 0) | (indices >= columns)
    if outside.any():
        at = int(outside.argmax())
        raise InvalidInput(
            f"{prefix}_indices[{at}] is {indices[at]}, but the matrix has {columns} columns, 0 to {columns - 1}."
        )
    if data is not None and (data.shape != indices.shape or data.dtype.kind not in "biuf"):
        raise InvalidInput(
            f"{prefix}_data is {data.dtype} of shape {data.shape}; give a number for each of {len(indices)} entries."
        )
    return indptr, indices.astype(np.int64), data, (rows, columns)


def _vector(array: NDArray[Any], what: str, length: int) -> NDArray[Any]:
    if array.shape != (length,):
        raise InvalidInput(f"{what} has shape {array.shape}; give one value per node, {length} in all.")
    return array


def _split(arrays: Arrays, num_nodes: int) -> dict[str, NDArray[Any]] | None:
    from trainer.data.graph import SPLITS

    given = {part: arrays[part] for part in SPLITS if part in arrays}
    if not given:
        return None
    return {
        part: np.flatnonzero(_vector(array, f"mask {part}", num_nodes)) if array.dtype.kind == "b" else array
        for part, array in given.items()
    }


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays, after their headers have been checked: nothing is unpacked that is too large or holds objects."""
    if not path.is_file():
        raise InvalidInput(f"{path}: no such file. Check data.files.npz.")
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            _check_size(path, sum(info.file_size for info in members))
            for info in members:
                _check_header(path, archive, info)
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in (info.filename.removesuffix(".npy") for info in members)}
    except zipfile.BadZipFile as error:
        raise InvalidInput(f"{path}: not an npz file, or cut short ({error}). Write it with numpy.savez.") from error
    except (OSError, ValueError, EOFError, NotImplementedError, zlib.error) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{path}: cannot be read ({error}). Write it anew with numpy.savez.") from error


def _check_size(path: Path, size: int) -> None:
    limit = min(MAX_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if size > limit:
        raise InvalidInput(
            f"{path}: unpacks to {size:,} bytes, more than the {limit:,} allowed here. "
            "Save features sparse (attr_*), or give the graph as Parquet tables."
        )


def _check_header(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """numpy allocates what a header promises before it reads, so a header must not promise more than is there."""
    name = info.filename.removesuffix(".npy")
    with archive.open(info) as file:
        major = npy.read_magic(file)[0]
        read = {1: npy.read_array_header_1_0, 2: npy.read_array_header_2_0}.get(major)
        if read is None:
            raise InvalidInput(f"{path}: {name} has named fields. Save plain arrays.")
        shape, _, dtype = read(file)
    if dtype.kind not in "biufU":
        why = "holds Python objects (rows of different lengths?)" if dtype.hasobject else f"has type {dtype}"
        raise InvalidInput(f"{path}: {name} {why}. Save plain arrays of numbers or text.")
    if math.prod(shape) * dtype.itemsize > info.file_size:
        raise InvalidInput(
            f"{path}: {name} is cut short: {shape} of {dtype} do not fit its {info.file_size} bytes. Write it anew."
        )


def _listed(arrays: Arrays) -> str:
    return ", ".join(sorted(arrays)) or "nothing"
