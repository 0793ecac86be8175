"""What jobs and sweeps have in common: submit, list, show, cancel, delete."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from service.api import submission
from service.api.body import read_document
from service.api.direct import DirectRoute
from service.api.openapi import json_request, refusals
from service.api.problems import Problem
from service.api.responses import job_document, json_response
from service.api.schemas import JobPage, JobSummary, State
from service.api.security import caller_of, check_may_change
from service.api.state import state_of
from service.api.threads import in_thread, read
from service.discarded import discard
from service.embeddings.jobs import settled
from service.settings import Settings
from service.store import Store
from service.store.errors import NotFound
from service.store.records import Idempotency, Job, Kind, NewJob
from trainer.config import PRINTABLE
from trainer.errors import InvalidInput

MAX_PAGE = 500
_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")

Prepare = Callable[[dict[str, Any], submission.Request, Store, Settings], NewJob]


@dataclass(frozen=True)
class Resource:
    """A collection of jobs under one path."""

    path: str
    noun: str
    kind: Kind  # what is listed and submitted
    kinds: frozenset[Kind]  # what may be asked for by its id
    document: type[JobSummary]
    prepare: Prepare
    body: str  # name of the spec's schema
    examples: dict[str, Any]

    @property
    def tag(self) -> str:
        return f"{self.noun}s"


async def find_job(request: Request, job_id: str, resource: Resource) -> Job:
    """Raises Problem 404 unless there is one."""
    store = state_of(request).store
    job = await read(store, store.jobs.get, job_id) if _ID.fullmatch(job_id) else None
    if job is None or job.kind not in resource.kinds:
        raise Problem(404, f"there is no {resource.noun} with this id")
    return job


def add_routes(router: APIRouter, resource: Resource) -> None:
    """Add the resource's common routes."""
    noun, path, one = resource.noun, resource.path, resource.path + "/{job_id}"
    shared: dict[str, Any] = {"tags": [resource.tag]}

    async def show(request: Request, job_id: str) -> Response:
        """Its state, progress, newest figures, and where its results are."""
        job = await find_job(request, job_id, resource)
        return json_response(job_document(job, mlflow_ui_url=state_of(request).settings.mlflow_ui_url))

    router.add_api_route(
        one, show, methods=["GET"], response_model=resource.document, operation_id=f"get_{noun}",
        summary=f"Show a {noun}", responses=refusals(404), route_class_override=DirectRoute, **shared,
    )  # fmt: skip

    @router.post(
        path, status_code=202, response_model=resource.document, operation_id=f"submit_{noun}",
        summary=f"Submit a {noun}", openapi_extra=json_request(resource.body, resource.examples),
        responses={202: _accepted(noun), **refusals(408, 413, 415, 422, 429, 507)}, **shared,
    )  # fmt: skip
    async def submit(
        request: Request,
        name: Annotated[str | None, Query(min_length=1, max_length=200, pattern=PRINTABLE)] = None,
        priority: Annotated[int, Query(ge=-100, le=100, description="higher ones start first")] = 0,
        deadline_minutes: Annotated[
            float | None, Query(gt=0, le=1e6, allow_inf_nan=False, description="from now; then it fails")
        ] = None,
        idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200, pattern=r"^[!-~]*$")] = None,
    ) -> Response:
        """Everything is checked before the answer: fields, data set, memory. What the document leaves out is as its
        preset has it; without `preset` that is `nml`, with null the defaults below."""
        document, store, settings = await read_document(request), state_of(request).store, state_of(request).settings
        owner = caller_of(request).owner
        parameters = {"name": name, "priority": priority, "deadline_minutes": deadline_minutes}

        deadline = None if deadline_minutes is None else time.time() + 60 * deadline_minutes
        asked = submission.Request(owner, name, priority, deadline)

        readiness = state_of(request).readiness

        def prepare() -> tuple[Job | NewJob, Idempotency | None]:
            promise = None
            if idempotency_key is not None:
                known_by = submission.fingerprint(resource.kind, document, parameters)
                promise = Idempotency(owner, idempotency_key, known_by)
                # before all checks: a repeat finds its job even if what that needed has gone since
                if (earlier := store.jobs.promised(promise)) is not None:
                    return earlier, promise
            if not readiness.has_room():
                raise Problem(507, "the disk of this service is almost full; try again when something was deleted")
            return resource.prepare(document, asked, store, settings), promise

        wanted, promise = await in_thread(prepare)
        if isinstance(wanted, Job):
            job, is_new = wanted, False
        else:
            most = settings.max_active_jobs
            try:
                job, is_new = await state_of(request).write(
                    store.jobs.submit, wanted, idempotency=promise, max_active=most
                )
            except NotFound as error:
                place = "base." if resource.kind == "sweep" else ""
                raise InvalidInput(f"{place}data.imported: {error}") from error
        made = job_document(job, mlflow_ui_url=settings.mlflow_ui_url)
        headers = {"Location": made["links"]["self"]} | ({} if is_new else {"Idempotent-Replayed": "true"})
        return json_response(made, status=202, headers=headers)

    @router.get(
        path, response_model=JobPage, operation_id=f"list_{noun}s", summary=f"List {noun}s, newest first",
        responses=refusals(422), **shared,
    )  # fmt: skip
    async def list_(
        request: Request,
        state: Annotated[list[State] | None, Query(max_length=6, description="only these; may be repeated")] = None,
        dataset: Annotated[str | None, Query(max_length=128, pattern=PRINTABLE)] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
        cursor: Annotated[str | None, Query(pattern=r"^[0-9A-Za-z_-]{1,64}$", description="`next` of a page")] = None,
    ) -> Response:
        store, ui = state_of(request).store, state_of(request).settings.mlflow_ui_url
        jobs, following = await in_thread(
            store.jobs.list, kind=resource.kind, states=state or (), dataset=dataset, before=cursor, limit=limit
        )
        items = [job_document(job, mlflow_ui_url=ui, whole=False) for job in jobs]
        return json_response({"items": items, "next": following})

    @router.post(
        one + "/cancel", status_code=202, response_model=resource.document, operation_id=f"cancel_{noun}",
        summary=f"Cancel a {noun}", responses=refusals(404, 409), **shared,
    )  # fmt: skip
    async def cancel(request: Request, job_id: str) -> Response:
        """One that waits ends now; one that runs writes a checkpoint first. Asking again changes nothing."""
        await _own_job(request, job_id, resource)
        job = await state_of(request).write(state_of(request).store.jobs.cancel, job_id)
        await _settle(request, job)
        return json_response(job_document(job, mlflow_ui_url=state_of(request).settings.mlflow_ui_url), status=202)

    @router.delete(
        one, status_code=204, response_class=Response, operation_id=f"delete_{noun}",
        summary=f"Delete a {noun} that has ended, and its files", responses=refusals(404, 409), **shared,
    )  # fmt: skip
    async def delete(request: Request, job_id: str) -> Response:
        await _own_job(request, job_id, resource)
        settings = state_of(request).settings
        job = await state_of(request).write(
            state_of(request).store.jobs.delete, job_id
        )  # first: files left are in nobody's way
        await _settle(request, job)
        for folder in (settings.run_directory(job_id), settings.job_directory(job_id)):
            await in_thread(discard, folder)
        return Response(status_code=204)


async def _own_job(request: Request, job_id: str, resource: Resource) -> None:
    """Raises Problem unless there is such a job and it is the caller's to change."""
    job = await find_job(request, job_id, resource)
    if job.kind == "import":
        raise Problem(409, f"this is the check of data set {job.dataset}; delete the data set instead")
    check_may_change(request, job.owner)


async def _settle(request: Request, job: Job) -> None:
    """What a job that publishes or indexes was to make is not left unfinished if it has ended."""
    if job.kind not in ("publish", "index") or not job.is_terminal:
        return
    store = state_of(request).store
    version = await in_thread(store.embeddings.get, str(job.spec["version"]))
    if version is not None:
        await state_of(request).write(settled, version, store)


def _accepted(noun: str) -> dict[str, Any]:
    """How a submission is answered, and what can be asked with the id in it."""
    followed = ("get_{}", "cancel_{}", "watch_{}", "read_{}_log", "read_{}_metrics")
    return {
        "description": "It is queued, or was by an earlier request with the same Idempotency-Key.",
        "headers": {
            "Location": {"description": "where it can be followed", "schema": {"type": "string"}},
            "Idempotent-Replayed": {"description": "`true` if it was queued before", "schema": {"type": "string"}},
        },
        "links": {
            name.format(noun): {"operationId": name.format(noun), "parameters": {"job_id": "$response.body#/id"}}
            for name in followed
        },
    }
