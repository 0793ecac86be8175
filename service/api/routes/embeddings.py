"""/v1/embeddings: list, show, publish, index and delete embedding versions."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from service.api.embeddings.documents import PREFIX, embedding_document
from service.api.embeddings.openapi import request_body
from service.api.embeddings.request_body import read_body
from service.api.embeddings.schemas import BuildIndex, EmbeddingDocument, EmbeddingPage, Publish
from service.api.openapi import refusals
from service.api.problems import Problem
from service.api.responses import json_response
from service.api.security import check_may_change
from service.api.state import AppState, State
from service.api.threads import in_thread
from service.embeddings.jobs import class_names, index_job, most_memory, publish_job, reconciled
from service.embeddings.retention import remove_version
from service.store.records import Embedding
from trainer.spec.base import PRINTABLE

MAX_PAGE = 500
_QUEUED: dict[str, Any] = {
    "description": "Queued, now or by an earlier request.",
    "headers": {"Location": {"description": "the version, to follow its state", "schema": {"type": "string"}}},
}

router = APIRouter(prefix=PREFIX, tags=["embeddings"])


async def _find_version(state: State, version: str) -> Embedding:
    """By its own name or by an alias, in any state; reconciled if the job that makes it was cancelled."""
    row = await state.catalog.row(version)
    if row.state == "publishing" or any(entry.get("state") == "building" for entry in row.indexes.values()):
        row = await state.write(reconciled, row, state.store)
    return row


FoundVersion = Annotated[Embedding, Depends(_find_version)]


@router.get("", response_model=EmbeddingPage, summary="List versions, newest first", responses=refusals(422))
async def list_embeddings(
    state: State,
    dataset: Annotated[
        str | None, Query(max_length=128, pattern=PRINTABLE, description="with its version, or all of that name")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    cursor: Annotated[str | None, Query(pattern=r"^[0-9A-Za-z_-]{1,64}$", description="`next` of a page")] = None,
) -> Response:
    rows, following = await in_thread(state.store.embeddings.list, dataset=dataset, before=cursor, limit=limit)
    await state.catalog.refresh()
    items = [embedding_document(row, state.catalog.aliases_of(row.version)) for row in rows]
    return json_response({"items": items, "next": following})


@router.head("/{version}", include_in_schema=False)
@router.get("/{version}", response_model=EmbeddingDocument, summary="Show a version", responses=refusals(404))
async def get_embedding(state: State, found: FoundVersion) -> Response:
    """By its own name or by an alias, in any state."""
    return await _shown(state, found, headers={"Nml-Version": found.version})


@router.post(
    "", status_code=202, response_model=EmbeddingDocument, summary="Publish the embeddings of a job",
    openapi_extra=request_body(Publish), responses={202: _QUEUED, **refusals(400, 404, 408, 409, 413, 415, 422, 507)},
)  # fmt: skip
async def publish_embedding(request: Request, state: State) -> Response:
    """The service does this itself when a training job succeeds. Ask for it if that failed, or if the version was
    deleted."""
    wanted = await read_body(request, Publish)
    job = await state.read(state.store.jobs.get, wanted.job)
    if job is None or job.kind != "train":
        raise Problem(404, "there is no training job with this id")
    check_may_change(request, job.owner)
    if job.state != "succeeded":
        raise Problem(409, f"the job is {job.state}; its embeddings can be published once it has succeeded")
    if not await in_thread(state.readiness.has_room):
        raise Problem(507, "the disk of this service is almost full; delete something, then try again")
    row, _ = await state.write(state.store.embeddings.create, job, publish_job(job))
    return await _queued(state, row)


@router.post(
    "/{version}/index", status_code=202, response_model=EmbeddingDocument, summary="Build a search index",
    openapi_extra=request_body(BuildIndex), responses={202: _QUEUED, **refusals(400, 404, 408, 409, 413, 415, 422)},
)  # fmt: skip
async def build_index(request: Request, state: State, found: FoundVersion) -> Response:
    """Large tables get one without being asked. Once it is built, backend `auto` uses it."""
    check_may_change(request, found.owner)
    wanted = await read_body(request, BuildIndex)
    if found.state != "ready":
        raise Problem(409, f"this version is {found.state}; it can be indexed once it is ready")
    job = index_job(found, wanted.kind, most=most_memory(state.settings))
    row, _ = await state.write(state.store.embeddings.build_index, found.version, wanted.kind, job)
    return await _queued(state, row)


@router.delete(
    "/{version}", status_code=204, response_class=Response, summary="Delete a version and its files",
    responses=refusals(404, 409),
)  # fmt: skip
async def delete_embedding(request: Request, state: State, version: str) -> Response:
    """By its own name only. Refused while it is being made, or while an alias that someone set points to it. Requests
    that are reading it can finish."""
    row = await state.read(state.store.embeddings.get, version)
    if row is None:
        raise Problem(404, "there is no version with this id; to remove an alias, use /v1/aliases")
    check_may_change(request, row.owner)
    await state.write(remove_version, version, state.store, state.settings)
    await state.catalog.refresh()
    return Response(status_code=204)


async def _queued(state: AppState, row: Embedding) -> Response:
    await state.catalog.refresh()
    headers = {"Location": f"{PREFIX}/{row.version}", "Nml-Version": row.version}
    return await _shown(state, row, status=202, headers=headers)


async def _shown(state: AppState, row: Embedding, *, status: int = 200, headers: dict[str, str]) -> Response:
    labelled = row.state == "ready" and (row.about or {}).get("classes") is not None
    classes = await in_thread(class_names, state.settings, row.version) if labelled else None
    document = embedding_document(row, state.catalog.aliases_of(row.version)) | {"classes": classes}
    return json_response(document, status=status, headers=headers)
