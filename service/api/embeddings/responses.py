"""From arrays to the bytes of an answer: JSON, raw float32, .npy or an Arrow stream.

JSON is written by orjson, with the shortest digits that give back the very same float32. Large matrices are written in
pieces, so that other threads get their turn in between (orjson holds the GIL), and sent in pieces (`sending`).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
from numpy.lib import format as npy
from numpy.typing import NDArray

from service.api.embeddings.negotiation import ARROW, IMMUTABLE, JSON, NO_CACHE, NPY, RAW
from service.api.embeddings.raw_response import Pairs, Piece, RawResponse, in_pieces
from service.api.problems import Problem, invalid
from service.embeddings.parquet import lookup_arrow

MOST_FLOATS = 33_554_432  # in one answer: 128 MB of them
MOST_JSON_FLOATS = 4_194_304  # as JSON: about 46 MB
PIECE_FLOATS = 1 << 16  # written at a time as JSON: about a millisecond
FORMS = (JSON, RAW, NPY, ARROW)
TAGS = {JSON: b"json", RAW: b"raw", NPY: b"npy", ARROW: b"arrow"}
_NUMPY = orjson.OPT_SERIALIZE_NUMPY

Floats = NDArray[np.float32]


class ResponseHeaders:
    """Headers of answers from one version, made once."""

    def __init__(self, version: str, dim: int):
        self.version = version.encode()
        self.json_start = b'{"version":%s,' % orjson.dumps(version)
        self.npy_row = npy_head((dim,))
        shared = [(b"nml-version", self.version), (b"vary", b"Accept")]
        self._kept = {
            (form, pinned): [
                *shared, (b"content-type", form.encode()), (b"cache-control", IMMUTABLE if pinned else NO_CACHE)
            ]
            for form in FORMS
            for pinned in (False, True)
        }  # fmt: skip
        self._once = {form: [*shared, (b"content-type", form.encode())] for form in FORMS}
        self._size = [(b"nml-dimension", b"%d" % dim)]

    def cacheable(self, form: str, pinned: bool, tag: bytes, size: int) -> Pairs:
        """Of an answer that the client may keep."""
        return [*self._kept[form, pinned], (b"etag", tag), (b"content-length", b"%d" % size)]

    def not_modified(self, form: str, pinned: bool, tag: bytes) -> RawResponse:
        """304: the client has it."""
        headers = [pair for pair in self._kept[form, pinned] if pair[0] != b"content-type"]
        return RawResponse([b""], [*headers, (b"etag", tag)], 304)

    def respond(
        self, form: str, body: Iterable[Piece], *, rows: int | None = None, unknown: int | None = None
    ) -> RawResponse:
        """A response to a request that has a body."""
        pieces = in_pieces(body)
        headers = [*self._once[form], (b"content-length", b"%d" % sum(map(len, pieces)))]
        if rows is not None:
            headers += [*self._size, (b"nml-rows", b"%d" % rows)]
        if unknown is not None:
            headers.append((b"nml-unknown", b"%d" % unknown))
        return RawResponse(pieces, headers)


def dumps(value: Any) -> bytes:
    """JSON of texts, numbers and float32 arrays (as numbers that give back the same float32).

    Whole numbers beyond 64 bits, which only clients can name, are written as they came.
    """
    try:
        return orjson.dumps(value, option=_NUMPY)
    except TypeError:
        if isinstance(value, list):
            return b"[%s]" % b",".join(dumps(item) for item in value)
        if isinstance(value, int):
            return b"%d" % value
        raise


def json_rows(vectors: Floats) -> Iterator[bytes]:
    """JSON of a matrix [n, dim], piece by piece."""
    count, dim = vectors.shape
    step = max(1, PIECE_FLOATS // max(dim, 1))
    for at in range(0, count, step):
        yield b"%s%s" % (b"," if at else b"[", orjson.dumps(vectors[at : at + step], option=_NUMPY)[1:-1])
    yield b"]" if count else b"[]"


def npy_head(shape: tuple[int, ...]) -> bytes:
    """What stands before the numbers in a .npy file of float32."""
    head = io.BytesIO()
    npy.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return head.getvalue()


def raw(vectors: Floats) -> memoryview:
    """The numbers as they are in memory, little-endian, without a copy."""
    return np.ascontiguousarray(vectors, "<f4").reshape(-1).data.cast("B")


def matrix(form: str, vectors: Floats) -> list[Piece]:
    """Vectors [n, dim] as raw numbers or .npy."""
    return [raw(vectors)] if form == RAW else [npy_head(vectors.shape), raw(vectors)]


def node_body(headers: ResponseHeaders, form: str, name: int | str, vector: Floats, label: str | None) -> list[Piece]:
    """One node's answer; name: its id as the table has it, vector: [dim]."""
    match form:
        case "application/json":
            end = b"}" if label is None else b',"label":%s}' % orjson.dumps(label)
            numbers = orjson.dumps(vector, option=_NUMPY)
            return [b'%s"id":%s,"vector":%s%s' % (headers.json_start, orjson.dumps(name), numbers, end)]
        case "application/octet-stream":
            return [vector.tobytes()]
        case "application/x-npy":
            return [headers.npy_row + vector.tobytes()]
    return [lookup_arrow([name], vector[None])]


def lookup_body(
    headers: ResponseHeaders, form: str, names: Sequence[int | str], vectors: Floats, unknown: NDArray[np.bool_]
) -> Iterable[Piece]:
    """names: as asked; vectors: [n, dim], NaN where unknown [n]."""
    if form == ARROW:
        return [lookup_arrow(names, vectors, unknown)]
    if form != JSON:
        return matrix(form, vectors)
    missing = [names[at] for at in np.flatnonzero(unknown).tolist()]
    found = names if not missing else [names[at] for at in np.flatnonzero(~unknown).tolist()]
    vectors = vectors if not missing else vectors[~unknown]
    return document(headers, {"ids": dumps(found), "vectors": json_rows(vectors), "unknown": dumps(missing)})


def results_json(
    queries: Sequence[int | str], ids: Sequence[Sequence[int | str]], scores: Sequence[Floats],
    vectors: Sequence[Floats] | None,
) -> Iterator[bytes]:  # fmt: skip
    """JSON of what was found for each query, piece by piece."""
    for at, query in enumerate(queries):
        start = b"," if at else b"["
        yield b'%s{"query":%s,"ids":%s,"scores":%s' % (start, dumps(query), dumps(ids[at]), dumps(scores[at]))
        if vectors is not None:
            yield b',"vectors":'
            yield from json_rows(vectors[at])
        yield b"}"
    yield b"]" if queries else b"[]"


def document(headers: ResponseHeaders, members: Mapping[str, bytes | Iterator[bytes]]) -> Iterator[bytes]:
    """A JSON object that begins with the version; its members, one at least, are JSON already."""
    start = headers.json_start
    for name, text in members.items():
        yield b'%s"%s":' % (start, name.encode())
        if isinstance(text, bytes):
            yield text
        else:
            yield from text
        start = b","
    yield b"}"


def check_size(floats: int, form: str, field: str, remedy: str, *, instead: str | None = None) -> None:
    """Raises Problem 422 where an answer would be too large; `instead`: a form that may hold more than JSON."""
    most = MOST_JSON_FLOATS if form == JSON else MOST_FLOATS
    if floats > most:
        if form == JSON and instead is not None and floats <= MOST_FLOATS:
            remedy = f"accept {instead} instead, or {remedy}"
        raise invalid(field, f"the answer would hold {floats:,} numbers; as {form} it may hold {most:,}; {remedy}")


def with_version(problem: Problem, version: str) -> Problem:
    """A refusal that tells which version it is about."""
    problem.headers.setdefault("Nml-Version", version)
    return problem
