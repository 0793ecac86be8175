"""/v1/jobs: training jobs, and the service's own (imports, publications, indexes), which are shown but not listed."""

from __future__ import annotations

import math
from itertools import chain
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import PlainTextResponse

from service.api.examples import JOBS, PATCHES
from service.api.files import download
from service.api.job_options import SubmitQuery
from service.api.openapi import json_request, refusals
from service.api.problems import Problem
from service.api.responses import OWN_KINDS, has_embeddings, json_response
from service.api.routes import job_requests
from service.api.routes.job_requests import After, IdempotencyKey, LastEventId, ListQuery, SeriesQuery
from service.api.schemas import JobDocument, JobPage, Series
from service.api.series import curve
from service.api.state import State, state_of
from service.api.submission import prepare_job
from service.api.threads import in_thread
from service.store import Store
from service.store.records import Job, Kind

_KINDS: frozenset[Kind] = frozenset({"train", *OWN_KINDS})
router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


async def _find_job(state: State, job_id: str) -> Job:
    return await job_requests.find_job(state, job_id, "job", _KINDS)


FoundJob = Annotated[Job, Depends(_find_job)]


@router.get("/{job_id}", response_model=JobDocument, summary="Show a job", responses=refusals(404))
async def get_job(request: Request, job_id: str) -> Response:
    """Its state, progress, newest metrics, and where its results are."""
    state = state_of(request)
    return job_requests.show(state, await _find_job(state, job_id))


@router.post(
    "", status_code=202, response_model=JobDocument, summary="Submit a job", responses=job_requests.submitted("job"),
    openapi_extra=json_request("JobSubmission", JOBS),
)  # fmt: skip
async def submit_job(
    request: Request, state: State, query: Annotated[SubmitQuery, Query()], idempotency_key: IdempotencyKey = None
) -> Response:
    """Fields, data set and memory are checked before the answer. What the spec leaves out is taken from its preset:
    `nml` unless `preset` names another; with `null`, the defaults below apply."""
    return await job_requests.submit(request, state, "train", prepare_job, query, idempotency_key)


@router.get("", response_model=JobPage, summary="List jobs, newest first", responses=refusals(422))
async def list_jobs(state: State, query: Annotated[ListQuery, Query()]) -> Response:
    return await job_requests.list_page(state, "train", query)


@router.patch(
    "/{job_id}", response_model=JobDocument, summary="Change its name, priority or metadata",
    responses=refusals(404, 408, 409, 413, 415, 422), openapi_extra=json_request("JobPatch", PATCHES),
)  # fmt: skip
async def edit_job(request: Request, state: State, job: FoundJob) -> Response:
    """Of what is in the body. The spec stays as it was submitted, and with it the name in MLflow. A new priority counts
    from the next time that a job is to be started."""
    return await job_requests.edit(request, state, job)


@router.post(
    "/{job_id}/cancel", status_code=202, response_model=JobDocument, summary="Cancel a job",
    responses=refusals(404, 409),
)  # fmt: skip
async def cancel_job(request: Request, state: State, job: FoundJob) -> Response:
    """A queued job ends now; a running one writes a checkpoint first. Repeating the request changes nothing."""
    return await job_requests.cancel(request, state, job)


@router.delete(
    "/{job_id}", status_code=204, response_class=Response, summary="Delete a job that has ended, and its files",
    responses=refusals(404, 409),
)  # fmt: skip
async def delete_job(request: Request, state: State, job: FoundJob) -> Response:
    return await job_requests.delete(request, state, job)


@router.get("/{job_id}/events", response_class=Response, summary="Watch a job", responses=job_requests.watched("job"))
async def watch_job(
    request: Request, state: State, job: FoundJob, after: After = 0, last_event_id: LastEventId = None
) -> Response:
    """Server-sent events: `id` is the event's number, `event` its type, `data` JSON. Types: `state`, `epoch`,
    `step`, `phase`, `stage` (the seconds of a part of the run), `checkpoint` and others that the run writes. `rewind`
    takes back the epochs after its `epoch`: a resumed run trains them again."""
    return job_requests.watch(request, state, job, after, last_event_id)


@router.get("/{job_id}/log", response_class=PlainTextResponse, summary="Read its log", responses=refusals(404, 422))
async def read_job_log(state: State, job: FoundJob, tail: job_requests.Tail = 1_000) -> Response:
    """The last lines of the run's log, or, if the run has not begun one, of what its process printed."""
    return await job_requests.read_log(state, job, tail)


@router.get("/{job_id}/metrics", response_model=Series, summary="Read metrics by epoch", responses=refusals(404, 422))
async def read_job_metrics(state: State, job: FoundJob, query: Annotated[SeriesQuery, Query()]) -> Response:
    return json_response(await state.series.run(_series, state.store, job, query))


@router.get("/{job_id}/figures/{name}", response_class=Response, summary="Get a figure", responses=job_requests.FIGURES)
async def get_job_figure(state: State, job: FoundJob, name: str) -> Response:
    return await job_requests.get_figure(state, job, name, "job")


@router.get(
    "/{job_id}/embeddings/{file}", response_class=Response, summary="Get a file of the embeddings",
    responses={
        200: {
            "description": "manifest.json names the others and their checksums: vectors [N, dim] in float32, and "
            "the ids of their rows in ids.npy (whole numbers) or ids.json (text).",
            "content": {"application/octet-stream": job_requests.BINARY, "application/json": {"schema": {}}},
        },
        **job_requests.PARTS, **refusals(404, 409, 422),
    },
)  # fmt: skip
async def get_embeddings(
    state: State, job: FoundJob, file: Literal["vectors.npy", "ids.npy", "ids.json", "manifest.json"]
) -> Response:
    """Supports ranges and entity tags, so that an interrupted download can be resumed."""
    if not job.is_terminal:
        raise Problem(409, f"the job is {job.state}; it has embeddings once it has succeeded")
    if not has_embeddings(job):
        raise Problem(404, "the job has no embeddings")
    return await in_thread(download, state.settings.run_directory(job.id), "embeddings", file)


def _series(store: Store, job: Job, query: SeriesQuery) -> dict[str, Any]:
    newest = job.metrics.get("epoch")  # how many there are, so that only those to be shown need to be read
    if not isinstance(newest, int):
        return curve(store.events.series(job.id), every=query.every, most=query.limit, names=query.wanted)
    step = max(query.every, math.ceil(newest / query.limit))
    last = store.events.epoch(job.id, newest)
    events = chain(store.events.series(job.id, every=step), [] if last is None else [last])
    return curve(events, every=step, most=query.limit, names=query.wanted)
