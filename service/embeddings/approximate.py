"""Approximate nearest neighbours for large tables: a FAISS index beside the vectors, built once, mapped by all.

    hnsw    a graph over the unit vectors, each number kept in 8 bits
    ivf     lists around 4·√N centres, each number kept in 8 bits

Either takes about a quarter of the vectors' size (hnsw adds its links, 136 bytes a row), because it only proposes
candidates: they are scored with the vectors themselves (service.embeddings.exact). Building raises the search `effort`
until recall@10 against exact search, on a sample of rows, is high enough; both numbers are recorded.
index.<kind>.json is written last and vouches for index.<kind>.faiss.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.embeddings.exact import Floats, Rows, Vectors, load_faiss, nearest, rescored
from service.embeddings.integrity import Stamps
from service.embeddings.layout import IndexKind, index_files
from service.embeddings.table import Table
from trainer.errors import Infrastructure, InvalidInput
from trainer.files.atomic import sha256, write_atomically, write_json

GOAL = 0.95  # of recall@10: an index below it is used only if it is asked for by name
RECALL = 0.96  # aimed at on the sample, for 500 queries tell the recall to about half a percent
SAMPLE = 500  # rows that serve as queries, each itself left out
# ef_search of hnsw, lists looked at by ivf. They do not begin lower because a row of the table, as those of the sample,
# is an easier query than a vector from elsewhere.
EFFORTS: dict[IndexKind, tuple[int, ...]] = {
    "hnsw": (64, 96, 128, 192, 256, 384, 512, 768, 1024),
    "ivf": (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024),
}
LINKS = 16  # of hnsw: twice as many on the lowest level
EF_CONSTRUCTION = 80
BATCH = 1 << 22  # numbers of one batch of rows: 16 MB
TRAINING_ROWS = 1 << 17
ROWS_PER_LIST = 32  # a centre is the mean of at least so many rows of the training sample
SEED = 20_250_101
FORMAT = 1
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Index:
    """An open index. Several threads may search at once."""

    kind: IndexKind
    effort: int
    recall: float  # recall@10 that was measured at this effort
    rows: int
    opened: Any  # faiss.Index
    files: Stamps = field(default_factory=lambda: Stamps(()))  # of the mapped file

    def nearest(self, table: Table, queries: Floats, k: int, exclude: Rows | None = None) -> tuple[Rows, Floats]:
        """As exact.nearest for cosine, from the index's candidates; fewer than k were found where a row is -1."""
        faiss = load_faiss()
        asked = min(k + 1 + max(16, k // 8), self.rows)
        if self.kind == "hnsw":
            options = faiss.SearchParametersHNSW(efSearch=max(self.effort, asked))
        else:
            options = faiss.SearchParametersIVF(nprobe=self.effort)
        lengths = np.linalg.norm(queries.astype(np.float64), axis=1, keepdims=True)
        unit = np.ascontiguousarray(queries / lengths, np.float32)
        candidates = self.opened.search(unit, asked, params=options)[1]
        if exclude is not None:
            candidates[candidates == exclude[:, None]] = -1
        searched = Vectors(table.vectors, table.inverse_norms, "cosine")
        return rescored(searched, queries, candidates, min(k, asked))


def build_index(
    table: Table, kind: IndexKind, *, threads: int | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Write index.<kind>.faiss and index.<kind>.json into the version's folder; returns what the latter says.

    {"format", "kind", "rows", "dim", "parameters", "effort", "recall_at_10", "sample", "seconds", "bytes", "sha256"}:
    recall at the effort that searches will use, which may stay below 0.95 where even the largest effort does not reach
    it, and is 0 where nothing could be measured (`sample`, the number of queries, is 0 too). Memory: `index_memory`.
    `threads` of FAISS; with one the same table gives the same index. A whole index that is there is not built again.
    Of one version only one is built at a time: a second call waits.

    Raises:
        Infrastructure: the files cannot be written, or the folder is gone.
    """
    tell = progress or (lambda what, share: None)
    try:
        with _alone(table.directory):
            document = _standing(table, kind)
            if document is None:
                document = _build(table, kind, threads, tell)
    except OSError as error:
        raise Infrastructure(f"the {kind} index could not be written ({error}). Build it again.") from error
    tell("done", 1.0)
    return document


def _build(table: Table, kind: IndexKind, threads: int | None, tell: Progress) -> dict[str, Any]:
    started = time.monotonic()
    index_file, document_file = (table.directory / name for name in index_files(kind))
    for name in (index_file.name, document_file.name):
        for left in table.directory.glob(f".{name}.*.tmp"):  # of an attempt that was killed
            left.unlink(missing_ok=True)
    document_file.unlink(missing_ok=True)  # so that it never vouches for another file than its own
    with _threads(threads):
        built, parameters = _built(table, kind, tell)
        tell("writing", 0.0)
        _write(built, index_file)
        del built
        opened = _opened(index_file)
        effort, recall, sample = _measured(table, kind, opened, int(parameters.get("lists", EFFORTS[kind][-1])), tell)
    parameters |= {"ef_search": effort} if kind == "hnsw" else {"probes": effort}
    document = {
        "format": FORMAT, "kind": kind, "rows": table.info.rows, "dim": table.info.dim, "parameters": parameters,
        "effort": effort, "recall_at_10": recall, "sample": sample, "seconds": round(time.monotonic() - started, 3),
        "bytes": index_file.stat().st_size, "sha256": sha256(index_file),
    }  # fmt: skip
    write_json(document_file, document)
    return document


def _standing(table: Table, kind: IndexKind) -> dict[str, Any] | None:
    """The document of an index that is there, opens, and is what the document says to the last byte."""
    index_file, document_file = (table.directory / name for name in index_files(kind))
    try:
        open_index(table, kind)
        document: dict[str, Any] = json.loads(document_file.read_bytes())
    except (InvalidInput, FileNotFoundError):
        return None
    return document if document.get("sha256") == sha256(index_file) else None


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """A lock on the version's folder, which the system drops when the process dies."""
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def open_index(table: Table, kind: IndexKind) -> Index:
    """Map an index: nothing of its size is read, and processes that do so share its pages.

    Raises:
        FileNotFoundError: it is not built.
        InvalidInput: it is damaged, or of other vectors.
    """
    index_file, document_file = (table.directory / name for name in index_files(kind))
    try:
        document = json.loads(document_file.read_bytes())
        shape = document["rows"], document["dim"]
        effort, size, recall = int(document["effort"]), int(document["bytes"]), float(document["recall_at_10"])
        if document["format"] != FORMAT or document["kind"] != kind or not 1 <= effort <= max(EFFORTS[kind]):
            raise ValueError("another format")
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(document_file.name, f"is not the document of an index ({error})", kind) from error
    if shape != (table.info.rows, table.info.dim):
        raise _damaged(document_file.name, f"speaks of a table of {shape[0]} × {shape[1]}", kind)
    stamps = Stamps([index_file])
    if index_file.stat().st_size != size:  # a map of a file cut short would end the process when it is read
        raise _damaged(index_file.name, f"has {index_file.stat().st_size} bytes instead of {size}", kind)
    try:
        opened = _opened(index_file)
    except RuntimeError as error:
        raise _damaged(index_file.name, "is refused by FAISS", kind) from error
    if (opened.ntotal, opened.d) != shape:
        raise _damaged(index_file.name, f"holds {opened.ntotal} × {opened.d} numbers", kind)
    return Index(kind, effort, recall, table.info.rows, opened, stamps)


def index_memory(rows: int, dim: int, kind: IndexKind) -> int:
    """Bytes that building takes at most, the pages of the mapped vectors left out."""
    codes = rows * (dim + (8 * LINKS + 24 if kind == "hnsw" else 16))
    training = min(rows, TRAINING_ROWS) * dim * 4
    return (256 << 20) + 3 * codes + 3 * training  # arrays that double hold the old and the new for a moment


def _damaged(name: str, what: str, kind: IndexKind) -> InvalidInput:
    return InvalidInput(f"{name} {what}. Build the index again, or use backend exact instead of {kind}.")


def _opened(path: Path) -> Any:
    faiss = load_faiss()
    return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)


def _write(index: Any, path: Path) -> None:
    faiss = load_faiss()
    try:
        write_atomically(path, lambda temporary: faiss.write_index(index, str(temporary)))
    except RuntimeError as error:  # of FAISS, if the disk is full
        raise OSError(f"{path.name}: {error}") from error


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    if count is not None:
        faiss.omp_set_num_threads(max(1, count))
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _built(table: Table, kind: IndexKind, tell: Progress) -> tuple[Any, dict[str, Any]]:
    """A trained index with all rows, and how it was made."""
    faiss = load_faiss()
    rows, dim = table.info.rows, table.info.dim
    quantizer, metric = faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    tell("training", 0.0)
    random = np.random.default_rng(SEED)
    chosen = np.sort(random.choice(rows, min(rows, TRAINING_ROWS), replace=False))
    sample = _unit(table, chosen)
    if kind == "hnsw":
        index = faiss.IndexHNSWSQ(dim, quantizer, LINKS, metric)
        index.hnsw.efConstruction = EF_CONSTRUCTION
        parameters = {"links": LINKS, "ef_construction": EF_CONSTRUCTION, "codes": "8 bits"}
    else:
        lists = max(1, min(round(4 * math.sqrt(rows)), len(sample) // ROWS_PER_LIST))
        centres = faiss.IndexFlatIP(dim)
        index = faiss.IndexIVFScalarQuantizer(centres, dim, lists, quantizer, metric)
        index.cp.seed, index.cp.niter, index.cp.spherical = SEED, 10, True
        index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, 1 << 20
        parameters = {"lists": lists, "codes": "8 bits"}
    index.train(sample)
    del sample
    step = max(1, BATCH // dim)
    for start in range(0, rows, step):
        index.add(_unit(table, slice(start, min(start + step, rows))))
        tell("adding", min(start + step, rows) / rows)
    return index, parameters


def _unit(table: Table, rows: Rows | slice) -> NDArray[np.float32]:
    return np.asarray(table.vectors[rows] * table.inverse_norms[rows][:, None], np.float32)


def _measured(table: Table, kind: IndexKind, opened: Any, most: int, tell: Progress) -> tuple[int, float, int]:
    """The least effort with enough recall, or the largest; its recall@10; how many queries told it.

    A row that scores as much as the tenth is as good as it, so equal vectors do not count as misses.
    """
    known = np.flatnonzero(table.inverse_norms)  # a zero vector is near to nothing
    rows = known[np.sort(np.random.default_rng(SEED + 1).choice(len(known), min(SAMPLE, len(known)), replace=False))]
    k = min(10, table.info.rows - 1)
    efforts = sorted({min(effort, most) for effort in EFFORTS[kind]})
    if not len(rows) or not k:
        return efforts[-1], 0.0, 0
    tell("measuring", 0.0)
    queries = table.vectors[rows]
    truth = nearest(table.vectors, table.inverse_norms, queries, k, exclude=rows)[1]
    effort, recall = efforts[-1], 0.0
    for done, effort in enumerate(efforts, 1):
        _, scores = Index(kind, effort, recall, table.info.rows, opened).nearest(table, queries, k, exclude=rows)
        recall = float((scores >= truth[:, -1:]).sum() / truth.size)  # NaN is no hit
        tell("measuring", done / len(efforts))
        if recall >= RECALL:
            break
    return effort, round(recall, 4), len(rows)
