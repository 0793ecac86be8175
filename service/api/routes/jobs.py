"""/v1/jobs: training."""

from __future__ import annotations

from fastapi import APIRouter

from service.api.examples import JOBS
from service.api.responses import OWN_KINDS
from service.api.routes.outputs import add_embeddings, add_outputs
from service.api.routes.work import Resource, add_routes
from service.api.schemas import JobDocument
from service.api.submission import prepare_job

_RESOURCE = Resource(
    path="/v1/jobs", noun="job", kind="train", kinds=frozenset({"train", *OWN_KINDS}), document=JobDocument,
    prepare=prepare_job, body="TrainSpec", examples=JOBS,
)  # fmt: skip


def add_jobs(router: APIRouter) -> None:
    """Add the paths."""
    add_routes(router, _RESOURCE)
    add_outputs(router, _RESOURCE)
    add_embeddings(router, _RESOURCE)
