"""/v1/datasets: upload a graph, see which there are, delete one."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.api.dataset_schemas import DatasetDocument, DatasetPage
from service.api.openapi import refusals
from service.api.problems import FieldError, Problem, invalid
from service.api.responses import json_response
from service.api.security import caller_of, check_may_change
from service.api.state import AppState, State
from service.api.threads import in_thread, limited, read
from service.datasets import catalog, registration
from service.datasets.documents import uploaded
from service.datasets.form import boundary_of
from service.datasets.identity import NAME, UploadOptions
from service.datasets.imports import settled
from service.datasets.in_progress import UploadInProgress
from service.datasets.receive import Received, receive
from service.datasets.refusal import Refused
from service.datasets.uploads import discard
from service.settings import Settings
from service.store import Store
from service.store.errors import NotFound, StateConflict, Unavailable
from service.store.records import Dataset

MAX_PAGE = 500
ALONE_SECONDS = 3.0  # that an upload waits for its check if no dispatcher is alive to begin it
REGISTER_PAUSES = (0.5, 1.0, 2.0, 4.0)  # seconds, while the database is away: an upload is not to be sent twice
_ENDING = {408: {"Connection": "close"}, 429: {"Retry-After": "10"}, 503: {"Retry-After": "10"}}

router = APIRouter(tags=["datasets"])


@router.post(
    "/v1/datasets", status_code=201, response_model=DatasetDocument,
    summary="Upload a graph",
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {
        "schema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": NAME, "description": "what to call it"},
                "options": UploadOptions.model_json_schema(),
                "npz": {"type": "string", "format": "binary", "description": "edge_index or adj_*, x or attr_*, …"},
                "nodes": {"type": "string", "format": "binary", "description": "CSV or Parquet: ids and features"},
                "edges": {"type": "string", "format": "binary", "description": "CSV or Parquet: source and target"},
            },
            "required": ["name"],
            "oneOf": [{"required": ["npz"]}, {"required": ["nodes", "edges"]}],
            "additionalProperties": False,
        },
        "encoding": {
            "options": {"contentType": "application/json"},
            "npz": {"contentType": "application/octet-stream"},
            "nodes": {"contentType": "text/csv, application/vnd.apache.parquet"},
            "edges": {"contentType": "text/csv, application/vnd.apache.parquet"},
        },
    }}}},
    responses={
        200: {"model": DatasetDocument, "description": "The same content had been uploaded before."},
        201: {"model": DatasetDocument, "description": "Checked and ready to use."},
        202: {"model": DatasetDocument, "description": "Still being checked; see Location for its state."},
        **refusals(400, 403, 408, 409, 413, 415, 422, 503, 507),
    },
)  # fmt: skip
async def upload_dataset(request: Request, state: State) -> Response:
    """Send npz, or nodes and edges as CSV or Parquet. Shapes, types, ids, ranges and values are checked before the
    answer, if that does not take too long. Its version follows from its content: the same again is the same data set.
    """
    store, settings, owner = state.store, state.settings, caller_of(request).owner
    try:
        with state.uploads.enter(owner) as progress:
            received = await _receive(request, store, settings, owner, progress)
            dataset, is_new = await _register(request, state, received, progress)
        dataset = await _checked(request, dataset, store, settings)
        if dataset.state == "failed":
            raise registration.why_failed(dataset, await read(store, store.jobs.get, dataset.job_id))
    except Refused as refused:
        named = registration.blamed(refused.message) == refused.field  # the importer's messages begin with the file
        detail = refused.message if named else f"{refused.field}: {refused.message}"
        blamed = FieldError(refused.field, refused.message)
        raise Problem(refused.status, detail, errors=[blamed], headers=_ENDING.get(refused.status)) from None
    status = 202 if dataset.state == "checking" else 201 if is_new else 200
    versions = await read(store, store.datasets.versions, dataset.name)
    return json_response(
        uploaded(dataset, versions), status=status, headers={"Location": f"/v1/datasets/{dataset.ref}"}
    )


@router.get(
    "/v1/datasets", response_model=DatasetPage, summary="List data sets",
    responses=refusals(422),
)  # fmt: skip
async def list_datasets(
    state: State,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    cursor: Annotated[str | None, Query(max_length=120, description="`next` of a page")] = None,
) -> Response:
    """Built-in and public sets, graphs imported on the command line, and every uploaded version."""
    try:
        page = await in_thread(catalog.page, state.store, state.settings, cursor=cursor, limit=limit)
    except ValueError as error:
        raise invalid("cursor", str(error)) from None
    return json_response(page._asdict())


@router.get(
    "/v1/datasets/{ref}", response_model=DatasetDocument, summary="Show a data set",
    responses=refusals(404),
)  # fmt: skip
async def get_dataset(state: State, ref: str) -> Response:
    """By reference, or by name: then the newest version that is ready, and a list of all."""
    return json_response(await in_thread(catalog.show, ref, state.store, state.settings))


@router.delete(
    "/v1/datasets/{ref}", status_code=204, response_class=Response,
    summary="Delete one version of an uploaded data set", responses=refusals(403, 404, 409),
)  # fmt: skip
async def delete_dataset(request: Request, state: State, ref: str) -> Response:
    """Refused while a job that has not ended needs it. One that is still being checked: the check is cancelled; if that
    takes a moment, the answer is 409, and a second request deletes it."""
    store, settings = state.store, state.settings
    row = await read(store, catalog.row_of, ref, store)
    if row is not None:
        check_may_change(request, row.owner)
        if row.state == "checking":
            with suppress(NotFound, StateConflict):
                job = await state.write(store.jobs.cancel, row.job_id)
                if job.is_terminal:  # it was still queued: no dispatcher will remove its files
                    await in_thread(discard, settings, str(job.spec["upload"]))
        await in_thread(settled, row, store)
    try:
        await in_thread(catalog.delete, ref, store, settings, orphans=caller_of(request).allows("admin"))
    except catalog.Protected as error:
        raise Problem(403, str(error)) from None
    return Response(status_code=204)


async def _receive(
    request: Request, store: Store, settings: Settings, owner: str | None, progress: UploadInProgress
) -> Received:  # fmt: skip
    """The files on disk."""
    boundary = boundary_of(request.headers.get("content-type", ""))
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Refused(415, "body", "send the form as it is, without Content-Encoding")
    allowance = await read(store, registration.allowance, store, settings, owner)
    length = request.headers.get("content-length", "")
    announced = int(length) if length.isdecimal() else None  # the guard has seen that it is sane
    return await receive(
        request.stream(), boundary, settings, announced=announced, allowance=allowance, progress=progress
    )


async def _register(
    request: Request, state: AppState, received: Received, progress: UploadInProgress
) -> tuple[Dataset, bool]:
    """The data set in the store, with its import job; the files stay unless it is certain that no job needs them."""
    caller = caller_of(request)
    for pause in (*REGISTER_PAUSES, None):
        try:
            # Files are not discarded if this is cancelled, or an answer of the database is lost: perhaps it was done.
            # If not, they are swept away later.
            dataset, is_new = await limited(
                state.checks, registration.register, received, state.store, state.settings, caller.owner,
                may_change=caller.may_change, others=progress.bytes_of_others(),
            )  # fmt: skip
        except Unavailable:
            if pause is None:
                raise
            await asyncio.sleep(pause)
            continue
        except Refused:
            await asyncio.shield(in_thread(received.upload.discard))
            raise
        if not is_new:
            await asyncio.shield(in_thread(received.upload.discard))
        return dataset, is_new
    raise AssertionError


async def _checked(request: Request, dataset: Dataset, store: Store, settings: Settings) -> Dataset:
    """The data set once its check has ended, or as it is when that takes too long or the client has gone."""
    began, pause, alone = time.monotonic(), 0.05, False
    while dataset.state == "checking":
        waited = time.monotonic() - began
        if waited >= settings.upload_wait_seconds or await request.is_disconnected():
            break
        if waited >= ALONE_SECONDS and not alone:
            if not await read(store, store.dispatchers.alive, settings.lease_seconds):
                break
            alone = True
        await asyncio.sleep(pause)
        pause = min(0.25, 1.2 * pause)
        found = await read(store, store.datasets.get, dataset.ref)
        if found is None:
            raise Problem(409, "the data set was deleted while it was being checked")
        dataset = found
    return dataset if dataset.state != "checking" else await in_thread(settled, dataset, store)
