"""/v1/sweeps: searches over settings, their trials and what they found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import PlainTextResponse

from service.api.examples import PATCHES, SWEEPS
from service.api.job_options import SubmitQuery
from service.api.openapi import json_request, refusals
from service.api.problems import Problem
from service.api.responses import json_response
from service.api.routes import job_requests
from service.api.routes.job_requests import After, IdempotencyKey, LastEventId, ListQuery, SeriesQuery
from service.api.schemas import JobPage, Series, SweepDocument, Trials
from service.api.series import best_so_far, trials
from service.api.state import State, state_of
from service.api.submission import prepare_sweep
from service.store.records import Job, Kind
from trainer.config import TrainSpec
from trainer.errors import InvalidInput
from tuner.config import SweepSpec, parse_sweep
from tuner.journal import TrialRecord, read_sweep
from tuner.results import best_trial, chosen_spec, protocol_line, rows, value_of

_KINDS: frozenset[Kind] = frozenset({"sweep"})
_MOST_TRIALS = 100_000
router = APIRouter(prefix="/v1/sweeps", tags=["sweeps"])


async def _find_sweep(state: State, job_id: str) -> Job:
    return await job_requests.find_job(state, job_id, "sweep", _KINDS)


FoundSweep = Annotated[Job, Depends(_find_sweep)]


@router.get("/{job_id}", response_model=SweepDocument, summary="Show a sweep", responses=refusals(404))
async def get_sweep(request: Request, job_id: str) -> Response:
    """Its state, progress, newest metrics, and where its results are."""
    state = state_of(request)
    return job_requests.show(state, await _find_sweep(state, job_id))


@router.post(
    "", status_code=202, response_model=SweepDocument, summary="Submit a sweep",
    responses=job_requests.submitted("sweep"), openapi_extra=json_request("SweepSubmission", SWEEPS),
)  # fmt: skip
async def submit_sweep(
    request: Request, state: State, query: Annotated[SubmitQuery, Query()], idempotency_key: IdempotencyKey = None
) -> Response:
    """Fields, data set and memory are checked before the answer. What `base` leaves out is taken from its preset:
    `nml` unless `preset` names another; with `null`, the defaults below apply."""
    return await job_requests.submit(request, state, "sweep", prepare_sweep, query, idempotency_key)


@router.get("", response_model=JobPage, summary="List sweeps, newest first", responses=refusals(422))
async def list_sweeps(state: State, query: Annotated[ListQuery, Query()]) -> Response:
    return await job_requests.list_page(state, "sweep", query)


@router.patch(
    "/{job_id}", response_model=SweepDocument, summary="Change its name, priority or metadata",
    responses=refusals(404, 408, 409, 413, 415, 422), openapi_extra=json_request("JobPatch", PATCHES),
)  # fmt: skip
async def edit_sweep(request: Request, state: State, job: FoundSweep) -> Response:
    """Of what is in the body. The spec stays as it was submitted, and with it the name in MLflow. A new priority counts
    from the next time that a sweep is to be started."""
    return await job_requests.edit(request, state, job)


@router.post(
    "/{job_id}/cancel", status_code=202, response_model=SweepDocument, summary="Cancel a sweep",
    responses=refusals(404, 409),
)  # fmt: skip
async def cancel_sweep(request: Request, state: State, job: FoundSweep) -> Response:
    """A queued sweep ends now; the trials of a running one write checkpoints first. Repeating the request changes
    nothing."""
    return await job_requests.cancel(request, state, job)


@router.delete(
    "/{job_id}", status_code=204, response_class=Response, summary="Delete a sweep that has ended, and its files",
    responses=refusals(404, 409),
)  # fmt: skip
async def delete_sweep(request: Request, state: State, job: FoundSweep) -> Response:
    return await job_requests.delete(request, state, job)


@router.get(
    "/{job_id}/events", response_class=Response, summary="Watch a sweep", responses=job_requests.watched("sweep")
)
async def watch_sweep(
    request: Request, state: State, job: FoundSweep, after: After = 0, last_event_id: LastEventId = None
) -> Response:
    """Server-sent events, as for jobs."""
    return job_requests.watch(request, state, job, after, last_event_id)


@router.get("/{job_id}/log", response_class=PlainTextResponse, summary="Read its log", responses=refusals(404, 422))
async def read_sweep_log(state: State, job: FoundSweep, tail: job_requests.Tail = 1_000) -> Response:
    """The last lines of the sweep's log, or, if it has not begun one, of what its process printed."""
    return await job_requests.read_log(state, job, tail)


@router.get("/{job_id}/metrics", response_model=Series, summary="Read values by trial", responses=refusals(404, 422))
async def read_sweep_metrics(state: State, job: FoundSweep, query: Annotated[SeriesQuery, Query()]) -> Response:
    def collect() -> dict[str, Any]:
        points = best_so_far(_read(job, state.settings.run_directory(job.id))[2])
        return trials(points, every=query.every, most=query.limit, names=query.wanted)

    return json_response(await state.series.run(collect))


@router.get("/{job_id}/figures/{name}", response_class=Response, summary="Get a figure", responses=job_requests.FIGURES)
async def get_sweep_figure(state: State, job: FoundSweep, name: str) -> Response:
    return await job_requests.get_figure(state, job, name, "sweep")


@router.get("/{job_id}/trials", response_model=Trials, summary="List a sweep's trials", responses=refusals(404, 422))
async def list_trials(
    state: State,
    job: FoundSweep,
    after: Annotated[int, Query(ge=-1, le=_MOST_TRIALS, description="`next` of the previous answer")] = -1,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
) -> Response:
    def collect() -> dict[str, Any]:
        spec, found, _ = _read(job, state.settings.run_directory(job.id))
        numbers = [number for number in sorted(found) if number > after]
        shown = numbers[:limit]
        best = best_trial(found)
        return {
            "objective": spec.objective, "protocol": protocol_line(spec),
            "states": Counter(trial.state for trial in found.values()),
            "best": None if best is None else best.number, "value": None if best is None else value_of(best),
            "trials": rows(spec, found, shown), "next": shown[-1] if len(numbers) > limit else None,
        }  # fmt: skip

    return json_response(await state.series.run(collect))


@router.get(
    "/{job_id}/best", response_model=TrainSpec, summary="Get the best settings so far, as a training spec",
    responses=refusals(404),
)  # fmt: skip
async def get_best_spec(state: State, job: FoundSweep) -> Response:
    """Ready for `POST /v1/jobs`. Among trials that have ended, by the sweep's objective on validation data."""

    def choose() -> TrainSpec | None:
        spec, found, _ = _read(job, state.settings.run_directory(job.id))
        return chosen_spec(spec, found)

    spec = await state.series.run(choose)
    if spec is None:
        raise Problem(404, "no trial has succeeded yet, so there is no best one")
    return json_response(spec.model_dump(mode="json"))


def _read(job: Job, folder: Path) -> tuple[SweepSpec, dict[int, TrialRecord], list[dict[str, Any]]]:
    """The sweep's spec, trials and journal as they are on disk; without trials where it has not begun."""
    try:
        return read_sweep(folder)
    except InvalidInput:
        return parse_sweep(job.spec), {}, []
