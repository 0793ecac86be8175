"""The OpenAPI document: what FastAPI knows of the routes, and what the guard does to all of them.

Every operation lists the refusals that it can answer with, each a problem document.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter

from service.api.embeddings.schemas import REQUEST_BODIES
from service.api.embeddings.score_schemas import SCORE_BODIES
from service.api.job_options import DESCRIBED as JOB_BODIES
from service.api.problems import MEDIA_TYPE
from service.api.schemas import ProblemDocument
from service.api.security import PUBLIC

REFERENCE = "#/components/schemas/"
PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": f"{REFERENCE}Problem"}}}
ANY_TIME = (400, 401, 403, 421, 429, 500, 503)  # from the guard, or because the database is away
_WITH_RETRY = (429, 503)
_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "`Authorization: Bearer nml_…`, from `nml keys create`",
    },
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "the same key, in another header"},
}
_BODIES: tuple[type[BaseModel], ...] = (*REQUEST_BODIES, *SCORE_BODIES, *JOB_BODIES)
DESCRIPTION = """
Trains node embeddings by graph contrastive learning: submit a spec, watch the job, ask for vectors and neighbours.

- Errors are problem documents (RFC 9457); `errors` names the fields to change.
- Lists are pages: pass `next` as `cursor`.
- A repeated `POST` with the same `Idempotency-Key` gives the same job.
- Vectors come as JSON, raw float32, .npy or Arrow, as `Accept` says; `Nml-Version` names the version that answered.
- Event streams can be resumed with `Last-Event-ID`; no event is lost or repeated.
"""


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`: what it may refuse with, beside what the guard does."""
    return {status: _refusal(status) for status in statuses}


def _refusal(status: int) -> dict[str, Any]:
    described: dict[str, Any] = {"description": HTTPStatus(status).phrase, "content": PROBLEM}
    if status in _WITH_RETRY:
        seconds = {"description": "seconds to wait before trying again", "schema": {"type": "integer"}}
        described["headers"] = {"Retry-After": seconds}
    return described


def json_request(schema: str, examples: dict[str, Any]) -> dict[str, Any]:
    """For a route's `openapi_extra`: a body that the route reads by itself."""
    content = {"schema": {"$ref": REFERENCE + schema}, "examples": examples}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def document(app: FastAPI, *, keys_required: bool) -> dict[str, Any]:
    """The whole document."""
    made = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, tags=app.openapi_tags,
        separate_input_output_schemas=app.separate_input_output_schemas,
    )  # fmt: skip
    schemas = made["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for question in _BODIES:  # which routes read by themselves
        described = question.model_json_schema(ref_template=REFERENCE + "{model}")
        schemas |= described.pop("$defs", {})
        schemas[question.__name__] = described
    problem = TypeAdapter(ProblemDocument).json_schema(ref_template=REFERENCE + "{model}")
    schemas |= problem.pop("$defs")
    schemas["Problem"] = problem
    made["components"]["securitySchemes"] = _SCHEMES
    made["security"] = [{"bearer": []}, {"apiKey": []}, *([] if keys_required else [{}])]
    for path, operation in _operations(made):
        responses = operation["responses"]
        for status in ANY_TIME:
            responses.setdefault(str(status), _refusal(status))
        if "422" in responses:
            responses["422"] = _refusal(422) | {"description": responses["422"].get("description", "")}
        operation["responses"] = dict(sorted(responses.items()))
        if path in PUBLIC:
            operation["security"] = []
    return made


def _operations(made: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in made["paths"].items():
        for operation in item.values():
            yield path, operation
