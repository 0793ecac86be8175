"""How large a graph is, learned without loading it: all that memory depends on (trainer.planning.estimate).

    synthetic      from its settings; non-zero features as expected, within a percent
    digits, public the catalogue's counts, which every load checks
    imported       the manifest, which every load compares with the arrays
    npz, Parquet   headers; CSV: lines are counted by streaming

Of the user's own files, edges are an upper bound: an undirected list counts twice, and repeated edges are merged only
when loaded. So are features: a dense table that turns out to be mostly zeros is stored sparse, and smaller.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.data.manifest import not_a_graph, read_manifest
from trainer.data.sparsity import SPARSE_BELOW, STRUCTURAL_WIDTH
from trainer.errors import InvalidInput
from trainer.process.home import nml_home
from trainer.spec.data import DataSpec, FilesSpec, SyntheticSpec

if TYPE_CHECKING:
    from trainer.data.graph import Graph
    from trainer.data.sources.table_file import TableFile

# Non-zero features of the public sets that are stored sparse; the others are dense.
_NONZEROS = {"cora": 49_216, "citeseer": 105_165, "pubmed": 988_031, "cs": 1_092_079, "physics": 1_137_311}
_UNKNOWN_CLASSES = 20  # where there are labels, but how many kinds is known only after reading them
_DRAWN_AT_ONCE = 1 << 22  # features, trainer.data.sources.synthetic
_COUNTED_AT_ONCE = 1 << 20  # bytes of a CSV file
_DTYPE = re.compile(r"[<|]([biufU])(\d+)")  # as numpy writes types: kind, and bytes or, of text, characters


@dataclass(frozen=True)
class GraphShape:
    """What the need depends on."""

    nodes: int
    edges: int  # stored directed ones
    features: int
    nonzeros: int | None = None  # of sparse features; None: dense
    weighted: bool = False
    mapped: bool = False  # on disk, read by slices
    classes: int = 0  # of the labels that evaluation may use; 0: there are none
    id_bytes: int = 8  # a node's own id
    loading: int = 0  # bytes that reading it takes beside itself; 0 once it is loaded
    note: str = ""  # where the numbers come from, for people


def shape_of(graph: Graph) -> GraphShape:
    """The shape of a graph that is loaded or mapped."""
    import numpy as np
    import torch

    sparse = graph.x.layout == torch.sparse_csr
    return GraphShape(
        graph.num_nodes, graph.num_edges, graph.num_features, graph.x.values().numel() if sparse else None,
        weighted=graph.weight is not None, mapped=isinstance(graph.ids, np.memmap), classes=graph.num_classes,
        id_bytes=graph.ids.itemsize, note="the graph itself",
    )  # fmt: skip


def shape_of_data(data: DataSpec, *, home: Path | None = None) -> GraphShape:
    """The shape of the graph that `data` names, without reading more of it than the module says.

    Raises:
        InvalidInput: files that are missing or are no graph, an import that does not exist.
    """
    home = home or nml_home()
    if data.name == "synthetic":
        shape = _synthetic(data.synthetic or SyntheticSpec())
    elif data.name == "imported":
        shape = _imported(data.imported or "", home)
    elif data.files is not None:
        shape = _npz(data.files) if data.files.npz is not None else _tables(data.files)
    else:
        shape = _named(data.name, home)
    if data.held_out_edges:
        shape = _without_held_out(shape, data.held_out_edges)
    if data.features == "raw":
        return shape
    if data.features == "zscore":  # dense, whatever it was
        shape = replace(shape, nonzeros=None)
    prepared = 4 * shape.nodes * shape.features if shape.nonzeros is None else 12 * shape.nonzeros
    return replace(shape, loading=max(shape.loading, prepared))  # the raw ones are there until these are


def _without_held_out(shape: GraphShape, share: float) -> GraphShape:
    """trainer.data.held_out: fewer edges; while they are chosen, the old ones, a byte each, and pairs being sorted."""
    old = 0 if shape.mapped else (12 if shape.weighted else 8) * shape.edges
    choosing = old + round((1 + 32 * share) * shape.edges)
    return replace(shape, edges=round((1 - share) * shape.edges), loading=max(shape.loading, choosing))


def _imported(name: str, home: Path) -> GraphShape:
    """From manifest.json; of the arrays themselves only how long their files are, so it costs nothing to ask."""
    from trainer.data.datasets import find_imported, imported_directory

    directory = imported_directory(name, home)
    if not (directory / "manifest.json").is_file():
        directory = find_imported(name, home)  # says which there are
    manifest = read_manifest(directory)
    try:
        sizes = {key: _stored(directory, key, form) for key, form in manifest["arrays"].items()}
        values = manifest["arrays"].get("x_values")
        return GraphShape(
            int(manifest["num_nodes"]), int(manifest["num_edges"]), int(manifest["num_features"]),
            None if values is None else int(values["shape"][0]), weighted="weight" in sizes, mapped=True,
            classes=len(manifest["classes"]), id_bytes=sizes["ids"], note="the imported graph's manifest",
        )  # fmt: skip
    except InvalidInput:
        raise
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise not_a_graph(directory, error) from error


def _stored(directory: Path, key: str, form: Mapping[str, Any]) -> int:
    """Bytes of one item of an array; refuses a file that is shorter than its shape."""
    kind = _DTYPE.fullmatch(form["dtype"])
    if kind is None:
        raise TypeError(f"{key} has type {form['dtype']}")
    item = int(kind[2]) * (4 if kind[1] == "U" else 1)
    path = directory / f"{key}.npy"
    if path.stat().st_size < item * math.prod(form["shape"]):
        raise InvalidInput(f"{path}: cut short, {form['dtype']} of {form['shape']} do not fit it. Import it anew.")
    return item


def _named(name: str, home: Path) -> GraphShape:
    from trainer.data.datasets import DIGITS
    from trainer.data.sources.public import SETS, cache_path

    known = SETS.get(name)
    counts = DIGITS if known is None else (known.nodes, known.edges, known.features, known.classes)
    shape = GraphShape(
        *counts[:3], _NONZEROS.get(name), mapped=known is not None, classes=counts[3], note="the catalogue"
    )
    if known is None or cache_path(name, home).is_dir():
        return shape
    # The first time PyG reads it, with dense features and a copy of them.
    return replace(shape, loading=8 * shape.nodes * shape.features + 80 * shape.edges)


def _synthetic(spec: SyntheticSpec) -> GraphShape:
    """Each of `active_features` draws hits an own column with probability p, another with q: some hit the same."""
    nodes, columns = spec.nodes, spec.features
    own = columns / spec.classes
    p, q = spec.signal / own + (1 - spec.signal) / columns, (1 - spec.signal) / columns
    draws = spec.active_features
    per_node = own * (1 - (1 - min(1.0, p)) ** draws) + (columns - own) * (1 - (1 - q) ** draws)
    nonzeros = round(nodes * per_node)
    edges = 2 * min(round(nodes * spec.degree / 2), nodes * (nodes - 1) // 2)
    sparse = nonzeros <= SPARSE_BELOW * nodes * columns
    # trainer.data.sources.synthetic draws edges, then features by chunks, and the graph is made of both.
    drawn = 56 * min(_DRAWN_AT_ONCE, nodes * draws) + 12 * nonzeros
    loading = max(32 * edges, 8 * edges + drawn)
    return GraphShape(
        nodes, edges, columns, nonzeros if sparse else None, classes=spec.classes, loading=loading,
        note="the generator's settings",
    )  # fmt: skip


def _npz(spec: FilesSpec) -> GraphShape:
    path = Path(spec.npz or "")
    headers = _headers(path)
    if "edge_index" in headers:
        listed = headers["edge_index"][0][-1]
    elif "adj_indices" in headers:
        listed = headers["adj_indices"][0][0]
    else:
        raise InvalidInput(f"{path}: neither edge_index nor adj_indices is in it. Add edge_index, [2, E].")
    nonzeros: int | None = None
    if "x" in headers and len(headers["x"][0]) == 2:
        nodes, features = headers["x"][0]
    elif "attr_shape" in headers and "attr_indices" in headers:
        nodes, features = _small_array(path, "attr_shape")
        nonzeros = headers["attr_indices"][0][0]
        nonzeros = nonzeros if nonzeros <= SPARSE_BELOW * nodes * features else None
    elif told := [headers[name][0][0] for name in ("ids", "y", "labels") if name in headers]:
        nodes, features = told[0], STRUCTURAL_WIDTH
    elif "adj_shape" in headers:
        nodes, features = _small_array(path, "adj_shape")[0], STRUCTURAL_WIDTH
    else:
        raise InvalidInput(
            f"{path}: neither x [N, F] nor attr_indices and attr_shape are in it. Add x, a row per node, or ids."
        )
    edges = listed if spec.directed else 2 * listed
    held = sum(size for _, size in headers.values())
    return GraphShape(
        nodes, edges, features, nonzeros, weighted="edge_weight" in headers or "adj_data" in headers,
        classes=_UNKNOWN_CLASSES if {"y", "labels"} & headers.keys() else 0,
        id_bytes=headers["ids"][1] // max(1, nodes) if "ids" in headers else 8,
        loading=held + 40 * edges, note=f"headers of {path.name}; {_edges_note(spec)}",
    )  # fmt: skip


def _tables(spec: FilesSpec) -> GraphShape:
    from trainer.data.sources.tables import open_tables

    tables = open_tables(spec)
    nodes, listed = _rows(tables.nodes), _rows(tables.edges)
    edges = listed if spec.directed else 2 * listed
    columns = tables.num_features or STRUCTURAL_WIDTH
    # Both tables as Arrow columns, features once more as a matrix, then edges while they are sorted.
    loading = nodes * (8 * columns + 100) + 60 * listed + 40 * edges
    counted = "rows" if tables.nodes.typed and tables.edges.typed else "lines"
    return GraphShape(
        nodes, edges, columns, weighted=tables.weight is not None,
        classes=_UNKNOWN_CLASSES if tables.label is not None else 0, loading=loading,
        note=f"counted {counted}; {_edges_note(spec)}; features taken for dense",
    )  # fmt: skip


def _edges_note(spec: FilesSpec) -> str:
    return "repeated edges not merged" if spec.directed else "each edge counted in both directions"


def _rows(table: TableFile) -> int:
    """Records of a table: from Parquet's footer, or by counting the lines of a CSV file."""
    from trainer.data.sources.table_lines import open_lines

    if table.typed:
        import pyarrow.parquet as pq

        rows: int = pq.read_metadata(table.path).num_rows
        return rows
    lines, last = 0, b"\n"
    with open_lines(table.path) as file:
        while block := file.read(_COUNTED_AT_ONCE):
            lines += block.count(b"\n")
            last = block[-1:]
    return max(0, lines + (last != b"\n") - 1)  # less the header


def _headers(path: Path) -> Mapping[str, tuple[tuple[int, ...], int]]:
    """Shape and bytes of every array of an npz file; the arrays themselves are not read."""
    from numpy.lib import format as npy

    if not path.is_file():
        raise InvalidInput(f"{path}: no such file. Check data.files.npz.")
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if info.filename.endswith(".npy"):
                    with archive.open(info) as file:
                        major = npy.read_magic(file)[0]
                        read = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
                        found[info.filename.removesuffix(".npy")] = (read(file)[0], info.file_size)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"{path}: cannot be read ({error}). Write it with numpy.savez.") from error
    return found


def _small_array(path: Path, name: str) -> list[int]:
    import numpy as np

    with np.load(path, allow_pickle=False) as file:
        values: Any = file[name]
    if values.shape != (2,) or values.dtype.kind not in "iu":
        raise InvalidInput(f"{path}: {name} must be [rows, columns]. Save all parts of the sparse matrix.")
    return [int(value) for value in values]
