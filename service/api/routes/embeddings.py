"""/v1/embeddings: which versions there are; publish, index, delete."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from service.api.embeddings.documents import PREFIX, embedding_document
from service.api.embeddings.openapi import question
from service.api.embeddings.request_body import read_question
from service.api.embeddings.schemas import BuildIndex, EmbeddingDocument, EmbeddingPage, Publish
from service.api.openapi import refusals
from service.api.problems import Problem
from service.api.responses import json_response
from service.api.routes.retrieval import ONE, catalog_of
from service.api.security import check_may_change
from service.api.state import state_of
from service.api.threads import in_thread, read
from service.embeddings.jobs import index_job, most_memory, publish_job, settled
from service.embeddings.retention import remove_version
from service.store.records import Embedding
from trainer.config import PRINTABLE

MAX_PAGE = 500


def add_versions(router: APIRouter) -> None:
    """Add the paths."""
    shared: dict[str, Any] = {"tags": ["embeddings"]}

    @router.get(
        PREFIX, response_model=EmbeddingPage, operation_id="list_embeddings", summary="List versions, newest first",
        responses=refusals(422), **shared,
    )  # fmt: skip
    async def list_(
        request: Request,
        dataset: Annotated[
            str | None,
            Query(max_length=128, pattern=PRINTABLE, description="with its version, or all of that name"),
        ] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
        cursor: Annotated[str | None, Query(pattern=r"^[0-9A-Za-z_-]{1,64}$", description="`next` of a page")] = None,
    ) -> Response:
        store, catalog = state_of(request).store, catalog_of(request)
        rows, following = await in_thread(store.embeddings.list, dataset=dataset, before=cursor, limit=limit)
        await catalog.refresh()
        named = catalog.aliases()
        items = [embedding_document(row, named.get(row.version, ())) for row in rows]
        return json_response({"items": items, "next": following})

    @router.head(ONE, include_in_schema=False)
    @router.get(
        ONE, response_model=EmbeddingDocument, operation_id="get_embedding", summary="Show a version",
        responses=refusals(404), **shared,
    )  # fmt: skip
    async def show(request: Request, version: str) -> Response:
        """By its own name or by an alias, in whatever state."""
        row, aliases = await _settled(request, version)
        return json_response(embedding_document(row, aliases), headers={"Nml-Version": row.version})

    @router.post(
        PREFIX, status_code=202, response_model=EmbeddingDocument, operation_id="publish_embedding",
        summary="Publish the embeddings of a job", openapi_extra=question(Publish),
        responses={202: _located("It is queued, or was before."), **refusals(400, 404, 408, 409, 413, 415, 422, 507)},
        **shared,
    )  # fmt: skip
    async def publish(request: Request) -> Response:
        """Happens by itself when a training job succeeds; ask for it if that failed, or if the version was deleted."""
        wanted = await read_question(request, Publish)
        store = state_of(request).store
        job = await read(store, store.jobs.get, wanted.job)
        if job is None or job.kind != "train":
            raise Problem(404, "there is no training job with this id")
        check_may_change(request, job.owner)
        if job.state != "succeeded":
            raise Problem(409, f"the job is {job.state}; there are embeddings once it has succeeded")
        if not await in_thread(state_of(request).readiness.has_room):
            raise Problem(507, "the disk of this service is almost full; try again when something was deleted")
        row, _ = await state_of(request).write(store.embeddings.create, job, publish_job(job))
        await catalog_of(request).refresh()
        named = catalog_of(request).aliases().get(row.version, ())
        return json_response(embedding_document(row, named), status=202, headers=_headers(row))

    @router.post(
        ONE + "/index", status_code=202, response_model=EmbeddingDocument, operation_id="build_index",
        summary="Build a search index", openapi_extra=question(BuildIndex),
        responses={202: _located("It is queued, or was before."), **refusals(400, 404, 408, 409, 413, 415, 422)},
        **shared,
    )  # fmt: skip
    async def index(request: Request, version: str) -> Response:
        """Large tables get one by themselves. It is used by `auto` from then on."""
        row, aliases = await _settled(request, version)
        check_may_change(request, row.owner)
        wanted = await read_question(request, BuildIndex)
        if row.state != "ready":
            raise Problem(409, f"this version is {row.state}; it can be indexed once it is ready")
        job = index_job(row, wanted.kind, most=most_memory(state_of(request).settings))
        row, _ = await state_of(request).write(
            state_of(request).store.embeddings.build_index, row.version, wanted.kind, job
        )
        await catalog_of(request).refresh()
        return json_response(embedding_document(row, aliases), status=202, headers=_headers(row))

    @router.delete(
        ONE, status_code=204, response_class=Response, operation_id="delete_embedding",
        summary="Delete a version and its files", responses=refusals(404, 409), **shared,
    )  # fmt: skip
    async def delete(request: Request, version: str) -> Response:
        """By its own name only. Refused while an alias that someone has set points to it, or it is being made. Who is
        reading it may finish."""
        store = state_of(request).store
        row = await read(store, store.embeddings.get, version)
        if row is None:
            raise Problem(404, "there is no version with this id; an alias is removed at /v1/aliases")
        check_may_change(request, row.owner)
        await state_of(request).write(remove_version, version, store, state_of(request).settings)
        await catalog_of(request).refresh()
        return Response(status_code=204)


async def _settled(request: Request, ref: str) -> tuple[Embedding, list[str]]:
    """The version as it is, also if the job that made it was cancelled without a word."""
    row, aliases = await catalog_of(request).row(ref)
    if row.state == "publishing" or any(entry.get("state") == "building" for entry in row.indexes.values()):
        row = await state_of(request).write(settled, row, state_of(request).store)
    return row, aliases


def _headers(row: Embedding) -> dict[str, str]:
    return {"Location": f"{PREFIX}/{row.version}", "Nml-Version": row.version}


def _located(description: str) -> dict[str, Any]:
    location = {"description": "where it can be followed", "schema": {"type": "string"}}
    return {"description": description, "headers": {"Location": location}}
