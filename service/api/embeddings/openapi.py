"""How the OpenAPI document describes vectors in their several forms, and the headers that come with them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from service.api.embeddings.negotiation import ARROW, JSON, NPY, RAW
from service.api.openapi import REFERENCE

BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_TEXT = {"type": "string"}
_COUNT = {"type": "integer"}
_VERSION = {
    "Nml-Version": {"description": "the version that success, even if the request named an alias", "schema": _TEXT}
}
_TAGGED = {"ETag": {"description": "strong: a version never changes", "schema": _TEXT}, **_VERSION}
_SHAPED = {
    "Nml-Rows": {"description": "with vectors: how many rows there are", "schema": _COUNT},
    "Nml-Dimension": {"description": "with vectors: numbers in each", "schema": _COUNT},
}
_COUNTED = {"Nml-Unknown": {"description": "how many ids were not found", "schema": _COUNT}}


def success(
    description: str, model: type[BaseModel], forms: tuple[str, ...], *, tagged: bool = False, shaped: bool = False,
    by_ids: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """A good answer in one of these forms.

    Args:
        tagged: it has an entity tag.
        shaped: it may be a matrix, whose shape headers tell.
        by_ids: a header tells how many of the ids asked for are not known.
    """
    content = {form: _described(form) for form in forms if form != JSON}
    headers = (_TAGGED if tagged else _VERSION) | (_SHAPED if shaped else {}) | (_COUNTED if by_ids else {})
    return {"description": description, "model": model, "content": content, "headers": headers}


NOT_MODIFIED = {"description": "The client has it already, as `If-None-Match` says.", "headers": _TAGGED}
PARTIAL = {"description": "The part that `Range` asks for.", "content": {"*/*": BINARY}, "headers": _TAGGED}
FILE_HEADERS = _TAGGED


def request_body(
    model: type[BaseModel], *, binary: bool = False, examples: dict[str, Any] | None = None
) -> dict[str, Any]:
    """For a route's `openapi_extra`: a body that the route reads by itself."""
    described: dict[str, Any] = {"schema": {"$ref": REFERENCE + model.__name__}}
    if examples:
        described["examples"] = examples
    content = {JSON: described}
    if binary:
        content |= {RAW: _described(RAW), NPY: _described(NPY)}
    return {"requestBody": {"required": True, "content": content}}


def _described(form: str) -> dict[str, Any]:
    texts = {
        RAW: "little-endian float32, row after row",
        NPY: "a .npy file of float32",
        ARROW: "an Arrow IPC stream",
    }
    return {"schema": {"type": "string", "format": "binary", "description": texts[form]}}
