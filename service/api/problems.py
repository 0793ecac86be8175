"""Every refusal is a problem document (RFC 9457), whatever went wrong and wherever.

    {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "…", "instance": "urn:uuid:…",
     "errors": [{"field": "method.temperature", "message": "…"}]}

Raise `Problem` anywhere below the guard. Documents never repeat what the client sent, other than the names of fields,
and rendering them cannot fail: texts are cut, and characters that no JSON reader wants are replaced.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Scope

from service.store.errors import (
    Fenced,
    IdempotencyConflict,
    InUse,
    NotAllowed,
    NotFound,
    QuotaExceeded,
    StateConflict,
    StoreError,
    Unavailable,
)
from trainer.errors import Infrastructure, InvalidInput, OutOfMemory
from trainer.spec.base import field_path

MEDIA_TYPE = "application/problem+json"
MAX_ERRORS, MAX_FIELD, MAX_TEXT = 50, 200, 1_000
REQUEST_ID = "nml.request_id"  # key of the ASGI scope, set by the guard
RETRY_SECONDS = 2  # what we tell clients when the database is away

log = logging.getLogger("service.api")

_PATH = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*"
_LINE = re.compile(rf"({_PATH}): (.+)", re.DOTALL)
_DOTTED = re.compile(
    r"\b(?:data|augment|encoder|method|optimiser|sampling|evaluation|run|base|space|starts)"
    r"(?:\.[A-Za-z0-9_]+)+"
)
_FIRST_WORD = re.compile(r"[a-z_]+(?:\.[a-z0-9_]+)*")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class FieldError(NamedTuple):
    """What is wrong with one field, by its dotted path."""

    field: str
    message: str


class Problem(Exception):
    """The request ends here, with this answer.

    Args:
        detail: a sentence for the person who must act on it.
        kind: tells problems of one status apart; becomes the type `urn:nml:problem:<kind>`.
        extra: further members of the document.
    """

    def __init__(
        self, status: int, detail: str, *, errors: Sequence[FieldError] = (), headers: Mapping[str, str] | None = None,
        kind: str | None = None, extra: Mapping[str, Any] | None = None,
    ):  # fmt: skip
        super().__init__(detail)
        self.status, self.detail, self.errors = status, detail, tuple(errors)
        self.headers, self.kind, self.extra = dict(headers or {}), kind, dict(extra or {})


def invalid(field: str, message: str) -> Problem:
    """422 for one field."""
    return Problem(422, f"{field}: {message}", errors=[FieldError(field, message)])


def unavailable(detail: str, *, seconds: int = RETRY_SECONDS, extra: Mapping[str, Any] | None = None) -> Problem:
    """503: the same request may succeed later."""
    return Problem(503, detail, headers={"Retry-After": str(seconds)}, kind="unavailable", extra=extra)


def problem_response(problem: Problem, scope: Scope) -> Response:
    """The answer."""
    document: dict[str, Any] = {
        "type": "about:blank" if problem.kind is None else f"urn:nml:problem:{problem.kind}",
        "title": HTTPStatus(problem.status).phrase, "status": problem.status, "detail": clean(problem.detail),
        "instance": f"urn:uuid:{scope.get(REQUEST_ID, '')}",
    }  # fmt: skip
    if problem.errors:
        shown = problem.errors[:MAX_ERRORS]
        document["errors"] = [{"field": clean(name, MAX_FIELD), "message": clean(text)} for name, text in shown]
    return Response(
        json.dumps(document | problem.extra).encode(),
        status_code=problem.status,
        headers=problem.headers,
        media_type=MEDIA_TYPE,
    )


def clean(text: str, most: int = MAX_TEXT) -> str:
    """Text that every JSON reader and terminal takes, cut to `most` characters."""
    text = text if len(text) <= most else text[: most - 1] + "…"
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def field_errors(details: Iterable[ErrorDetails], *, skip: int = 0) -> list[FieldError]:
    """What pydantic found, one entry per field.

    A rule between fields has no place of its own; then the message names the field, as the specs' messages do.

    Args:
        skip: parts of each location that are not the client's: "query", "body".
    """
    found = []
    for item in details:
        message = item["msg"].removeprefix("Value error, ")
        match item["type"]:
            case "extra_forbidden":
                message = "unknown key; remove it or check its spelling"
            case "union_tag_invalid":  # pydantic's own message repeats the input
                message = f"should be one of {item.get('ctx', {}).get('expected_tags', 'the known kinds')}"
        place = field_path([part if part != "" else '""' for part in item["loc"][skip:]])
        if place and item["type"] == "value_error":
            place = _narrowed(place, message)
        found.append(_placed(message) if not place else FieldError(place, message))
    return found


def _narrowed(place: str, message: str) -> str:
    """The field that a rule between the fields of a section is about, where its message names one: by the path within
    a training spec, which may itself be a section of a sweep.
    """
    line, dotted = _LINE.match(message), _DOTTED.search(message)
    if place == "base" and line is not None:
        return f"{place}.{line[1]}"
    if dotted is None:
        return place
    section, _, field = dotted[0].partition(".")
    if place.rpartition(".")[2] == section:
        return f"{place}.{field}"
    return f"{place}.{dotted[0]}" if place == "base" else place


def _placed(message: str) -> FieldError:
    """Find the field in the message of a rule between fields."""
    line = _LINE.match(message)
    if line is not None:
        return FieldError(line[1], line[2])
    dotted = _DOTTED.search(message)
    word = _FIRST_WORD.match(message)
    return FieldError(dotted[0] if dotted else word[0] if word else "body", message)


def not_valid(errors: Sequence[FieldError]) -> Problem:
    """422 that lists fields."""
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return Problem(422, f"{first.field}: {first.message}{more}", errors=errors)


def problem_of(error: Exception) -> Problem:
    """What to answer to an error that code below the routes raised; 500 for what nobody expected."""
    match error:
        case Problem():
            return error
        case RequestValidationError():
            return not_valid(field_errors(error.errors(), skip=1))
        case HTTPException():
            return _http_problem(error)
        case Unavailable():
            return unavailable("the database cannot be reached; nothing was lost, try again in a moment")
        case NotFound():
            return Problem(404, str(error))
        case NotAllowed():
            return Problem(403, str(error))
        case StateConflict() | InUse() | Fenced():
            return Problem(409, str(error))
        case QuotaExceeded():
            return Problem(429, str(error), headers={"Retry-After": "10"}, kind="quota")
        case IdempotencyConflict():
            field = FieldError("Idempotency-Key", str(error))
            return Problem(422, str(error), errors=[field], kind="idempotency-conflict")
        case InvalidInput() | OutOfMemory():
            lines = [_placed(line) for line in str(error).splitlines() if line.strip()]
            return not_valid(lines or [FieldError("body", "is not valid")])
        case Infrastructure():
            return unavailable(str(error))
        case ClientDisconnect():
            return Problem(400, "the connection was closed before the request was complete")
    return Problem(500, "internal error; the service's log has the details under this instance")


def _http_problem(error: HTTPException) -> Problem:
    """What FastAPI and Starlette refuse by themselves; their wording is for developers."""
    details = {
        400: "the request cannot be read", 404: "there is no such route; /openapi.json lists all of them",
        405: "this route does not support that method",
    }  # fmt: skip
    detail = details.get(error.status_code, HTTPStatus(error.status_code).phrase)
    return Problem(error.status_code, detail, headers=error.headers)


def install(app: FastAPI) -> None:
    """Let the app answer with problems."""

    async def answer(request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        if problem.status == 405:  # Starlette names the methods of the first route with that path only
            problem.headers["Allow"] = ", ".join(sorted(_methods_at(app, request.scope["path"])))
        return problem_response(problem, request.scope)

    for kind in (Problem, HTTPException, RequestValidationError, StoreError, InvalidInput, OutOfMemory, Infrastructure):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(ClientDisconnect, answer)


def _methods_at(app: FastAPI, path: str) -> set[str]:
    """The methods of all routes with this path."""
    matching = (route for route in iter_route_contexts(app.routes) if route.path_regex.match(path))
    return {method for route in matching for method in route.methods or ()}
