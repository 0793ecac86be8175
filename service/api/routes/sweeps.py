"""/v1/sweeps: searches over settings, their trials and what they found."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from service.api.examples import SWEEPS
from service.api.openapi import refusals
from service.api.problems import Problem
from service.api.responses import json_response
from service.api.routes.outputs import add_outputs
from service.api.routes.work import Resource, add_routes, find_job
from service.api.schemas import SweepDocument, Trials
from service.api.state import state_of
from service.api.submission import prepare_sweep
from service.api.threads import limited
from service.store.records import Job
from trainer.config import TrainSpec
from trainer.errors import InvalidInput
from tuner.config import SweepSpec, parse_sweep
from tuner.journal import TrialRecord, read_sweep
from tuner.results import best_trial, chosen_spec, protocol_line, rows, value_of

_RESOURCE = Resource(
    path="/v1/sweeps", noun="sweep", kind="sweep", kinds=frozenset({"sweep"}), document=SweepDocument,
    prepare=prepare_sweep, body="SweepSpec", examples=SWEEPS,
)  # fmt: skip
_MOST_TRIALS = 100_000


def add_sweeps(router: APIRouter) -> None:
    """Add the paths."""
    add_routes(router, _RESOURCE)
    add_outputs(router, _RESOURCE)

    @router.get(
        "/v1/sweeps/{job_id}/trials", response_model=Trials, operation_id="list_trials", tags=["sweeps"],
        summary="List a sweep's trials", responses=refusals(404, 422),
    )  # fmt: skip
    async def trials(
        request: Request,
        job_id: str,
        after: Annotated[int, Query(ge=-1, le=_MOST_TRIALS, description="`next` of an earlier answer")] = -1,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
    ) -> Response:
        job = await find_job(request, job_id, _RESOURCE)
        settings = state_of(request).settings

        def collect() -> dict[str, Any]:
            spec, found = _read(job, settings.run_directory(job_id))
            numbers = [number for number in sorted(found) if number > after]
            shown = numbers[:limit]
            best = best_trial(found)
            return {
                "objective": spec.objective, "protocol": protocol_line(spec),
                "states": Counter(trial.state for trial in found.values()),
                "best": None if best is None else best.number, "value": None if best is None else value_of(best),
                "trials": rows(spec, found, shown), "next": shown[-1] if len(numbers) > limit else None,
            }  # fmt: skip

        return json_response(await limited(state_of(request).series, collect))

    @router.get(
        "/v1/sweeps/{job_id}/best", response_model=TrainSpec, operation_id="get_best_spec", tags=["sweeps"],
        summary="Get the best settings so far, as a training spec", responses=refusals(404),
    )  # fmt: skip
    async def best(request: Request, job_id: str) -> Response:
        """Ready for `POST /v1/jobs`. Among trials that have ended, by the sweep's objective on validation data."""
        job = await find_job(request, job_id, _RESOURCE)
        settings = state_of(request).settings
        spec = await limited(state_of(request).series, lambda: chosen_spec(*_read(job, settings.run_directory(job_id))))
        if spec is None:
            raise Problem(404, "no trial has ended well yet, so there is no best one")
        return json_response(spec.model_dump(mode="json"))


def _read(job: Job, folder: Any) -> tuple[SweepSpec, dict[int, TrialRecord]]:
    """The sweep as it is on disk; without trials where it has not begun."""
    try:
        spec, found, _ = read_sweep(folder)
    except InvalidInput:
        return parse_sweep(job.spec), {}
    return spec, found
