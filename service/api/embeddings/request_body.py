"""Request bodies: JSON validated by its model, or a matrix of float32 in binary form.

Errors name the field (`vectors.3`), and nothing is computed before the whole body is valid.

Parsing JSON holds the GIL, whichever thread does it. So the bytes and values of a body are limited beforehand, to what
takes about a tenth of a second, and long bodies are parsed one at a time.
"""

from __future__ import annotations

import gc
import io
from typing import Any, TypeVar

import numpy as np
from fastapi import Request
from numpy.lib import format as npy
from numpy.typing import NDArray
from pydantic import ValidationError
from pydantic_core import from_json

from service.api.body import media_type, read_bytes
from service.api.edge.limits import QUESTION_BYTES
from service.api.embeddings.negotiation import JSON, NPY, RAW
from service.api.embeddings.schemas import OBJECT, PLAIN, TOO_MANY_KEYS, RequestBody
from service.api.problems import FieldError, Problem, clean, field_errors, invalid, not_valid
from service.api.state import state_of

SECONDS = 120.0  # for a body of tens of megabytes
MOST_VALUES = 320_000  # in a JSON text: 1,000 queries of 256 numbers, or the ids and labels of a classification
FEWER = f"; send less at a time, or send vectors as {NPY}, sparse features as indices and values"
_SMALL = 64_000  # bytes; what is read in a millisecond need not go to a thread
HEAD_BYTES = 10_000  # of a .npy file; a genuine one has 128
_NPY_TYPES = ("<f4", "<f8")
_NPY_MAGIC = b"\x93NUMPY"

Floats = NDArray[np.float32]
Q = TypeVar("Q", bound=RequestBody)


async def read_body(request: Request, model: type[Q]) -> Q:
    """A JSON body, validated.

    Raises:
        Problem: 415 another type, 413 too large, 408 too slow, 400 no JSON, 422 not as the model has it.
    """
    media_type(request, (JSON,))
    text = await read_bytes(request, seconds=SECONDS, most=QUESTION_BYTES, remedy=FEWER)
    if len(text) <= _SMALL:
        return parse(model, text)
    return await state_of(request).parses.run(parse, model, text)


def parse(model: type[Q], text: bytes) -> Q:
    """A JSON text, validated.

    Raises:
        Problem: 400 or 422.
    """
    _check_values(text)
    try:
        document = from_json(text, cache_strings="keys") if len(text) <= _SMALL else _read_long(text)
    except (ValueError, RecursionError) as error:
        reason = f"the body is not JSON: {clean(str(error), 200)}" if text.strip() else "the body is empty"
        raise Problem(400, reason, errors=[FieldError("body", reason)]) from None
    if not isinstance(document, dict):
        raise invalid("body", "should be a JSON object")
    try:
        return model.model_validate(document)
    except ValidationError as error:  # of few mistakes: models and lists stop at the first
        details: list[Any] = error.errors(include_url=False, include_input=False)
    for item in details:
        item["loc"] = tuple(part for part in item["loc"] if part not in (PLAIN, OBJECT))
        if item["type"] == TOO_MANY_KEYS and not item["loc"]:
            item["loc"] = ("body",)
        if item["type"] == "model_type":  # pydantic's own words are for Python
            item["msg"] = "should be a JSON object"
    raise not_valid(field_errors(details))


def _read_long(text: bytes) -> Any:
    """As `from_json`, without looking for garbage meanwhile: there is none, and looking takes longer than reading.

    One at a time, as `read_body` sees to; the GIL is held throughout, so that nobody else goes without.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return from_json(text, cache_strings="keys")
    finally:
        if was_enabled:
            gc.enable()


def _check_values(text: bytes) -> None:
    """Raises Problem 422 if a text may hold too many values: by its commas and brackets, which are counted quickly."""
    if sum(map(text.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise invalid("body", f"holds more than {MOST_VALUES:,} values{FEWER}")


def as_matrix(rows: list[list[float]], dim: int, field: str = "vectors") -> Floats:
    """Finite float32 [n, dim].

    Raises:
        Problem: 422, a row is of another length, or too large for float32.
    """
    for at, row in enumerate(rows):
        if len(row) != dim:
            raise invalid(f"{field}.{at}", f"has {len(row)} numbers, where vectors of this version have {dim}")
    return _finite(np.array(rows, np.float64).reshape(len(rows), dim), field)


def parse_matrix(kind: str, body: bytes, dim: int, most: int) -> Floats:
    """Finite float32 [n, dim] from a binary body.

    Raises:
        Problem: 422, it is something else, or has more than `most` rows.
    """
    found = _from_raw(body, dim, most) if kind == RAW else _from_npy(body, dim, most)
    return _finite(found, "vectors")


def _from_raw(body: bytes, dim: int, most: int) -> NDArray[Any]:
    if body.startswith(_NPY_MAGIC):  # its head may be as long as a few vectors
        raise invalid("body", f"is a .npy file; send it as {NPY}")
    count, rest = divmod(len(body), 4 * dim)
    if rest or not count:
        raise invalid(
            "body", f"has {len(body)} bytes; send float32 vectors of {dim} numbers, which have {4 * dim} bytes each"
        )
    _check_count(count, most)
    return np.frombuffer(body, "<f4").reshape(count, dim)


def _from_npy(body: bytes, dim: int, most: int) -> NDArray[Any]:
    file = io.BytesIO(body)
    try:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(version)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, dtype = read(file, max_header_size=HEAD_BYTES)
    except Exception:  # whatever numpy's reader makes of a text that anyone may have written
        raise invalid("body", "is not a .npy file of version 1 or 2") from None
    if dtype.str not in _NPY_TYPES:
        raise invalid("body", "is a .npy file of another type; send little-endian float32 (or float64)")
    if len(shape) != 2 or any(type(size) is not int for size in shape) or shape[1] != dim:
        raise invalid("body", f"is of shape {clean(str(shape), 60)}; send [n, {dim}], a row for each query")
    _check_count(shape[0], most)
    if len(body) - file.tell() != shape[0] * dim * dtype.itemsize:
        raise invalid("body", "is not as long as its header says")
    numbers = np.frombuffer(body, dtype, offset=file.tell())
    return numbers.reshape(shape, order="F" if is_fortran else "C")


def _check_count(count: int, most: int) -> None:
    if not 1 <= count <= most:
        raise invalid("vectors", f"there are {count:,} vectors; send 1 to {most:,} at a time")


def _finite(numbers: NDArray[Any], field: str) -> Floats:
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(numbers, np.float32)
    wrong = np.flatnonzero(~np.isfinite(found).all(axis=1))
    if len(wrong):
        errors = [FieldError(f"{field}.{at}", "holds a number that is not finite in float32") for at in wrong[:50]]
        raise not_valid(errors)
    return found
