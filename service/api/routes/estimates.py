"""/v1/estimates: what a training job would need, before it is submitted."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.api.body import read_document
from service.api.examples import JOBS
from service.api.job_options import JobOptions, SubmitQuery, split
from service.api.openapi import json_request, refusals
from service.api.responses import json_response
from service.api.schemas import EstimateDocument
from service.api.state import State
from service.api.submission import estimate_job, validated
from service.api.threads import in_thread

router = APIRouter(prefix="/v1/estimates", tags=["jobs"])


@router.post(
    "", response_model=EstimateDocument, summary="Estimate what a job would need",
    responses=refusals(408, 413, 415, 422), openapi_extra=json_request("JobSubmission", JOBS),
)  # fmt: skip
async def estimate(request: Request, state: State) -> Response:
    """Takes what `POST /v1/jobs` takes, and queues nothing: memory part by part, and the scope and batches that it
    would be trained with. Refused, with the same words, if the spec would be."""
    document, options = split(await read_document(request), SubmitQuery())
    validated(JobOptions, options)
    return json_response(await in_thread(estimate_job, document, state.store, state.settings))
