"""What /v1/jobs and /v1/sweeps share: their query parameters, and how a request is carried out for either."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Set
from typing import Annotated, Any

from fastapi import Header, Query, Request, Response
from fastapi.sse import EventSourceResponse
from pydantic import AwareDatetime, BaseModel, Field

from service.api import submission
from service.api.body import read_document
from service.api.files import FIGURE, download, tail
from service.api.job_options import LONGEST_VALUE, JobOptions, JobPatch, SubmitQuery, split
from service.api.openapi import refusals
from service.api.problems import Problem, invalid
from service.api.responses import PREFIX, CountedResponse, figure_names, job_document, json_response
from service.api.schemas import State as JobState
from service.api.security import caller_of, check_may_change
from service.api.series import MOST_POINTS
from service.api.state import AppState
from service.api.threads import in_thread
from service.discarded import discard
from service.embeddings.jobs import reconciled
from service.settings import Settings
from service.store import Store
from service.store.errors import NotFound
from service.store.records import Idempotency, Job, Kind, NewJob
from trainer.errors import InvalidInput
from trainer.spec.base import PRINTABLE

MAX_PAGE = 500
_LAST_SEQ = 2**53
_UNBUFFERED = {"X-Accel-Buffering": "no"}  # nginx would hold events back
_ENTRY = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}=[^\x00-\x1f\x7f-\x9f]*$"
_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")

Prepare = Callable[[dict[str, Any], submission.Request, Store, Settings], NewJob]
IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=200, pattern=r"^[!-~]*$")]
After = Annotated[int, Query(ge=0, le=_LAST_SEQ, description="number of the last event already seen")]
LastEventId = Annotated[int | None, Header(ge=0, le=_LAST_SEQ, description="takes precedence over `after`")]
Tail = Annotated[int, Query(ge=1, le=10_000)]


class ListQuery(BaseModel):
    state: list[JobState] | None = Field(None, max_length=6, description="only these; may be repeated")
    dataset: str | None = Field(
        None, max_length=128, pattern=PRINTABLE, description="with its version, as jobs have it"
    )
    name: str | None = Field(None, max_length=200, pattern=PRINTABLE, description="only those of exactly this name")
    created_from: AwareDatetime | None = Field(None, description="only those submitted then or later")
    created_before: AwareDatetime | None = Field(None, description="only those submitted earlier")
    metadata: list[Annotated[str, Field(pattern=_ENTRY, max_length=64 + 1 + LONGEST_VALUE)]] | None = Field(
        None, max_length=5, description="only those with this entry, `key=value`; may be repeated: all of them"
    )
    limit: int = Field(50, ge=1, le=MAX_PAGE)
    cursor: str | None = Field(None, pattern=r"^[0-9A-Za-z_-]{1,64}$", description="`next` of the previous page")

    def entries(self) -> dict[str, str]:
        """The entries of metadata asked for.

        Raises:
            Problem: 422, two values for a key, which no job has.
        """
        found: dict[str, str] = {}
        for text in self.metadata or ():
            key, _, value = text.partition("=")
            if found.setdefault(key, value) != value:
                raise invalid("metadata", "asks for two values of one key, which no job has; give one")
        return found


class SeriesQuery(BaseModel):
    names: str | None = Field(None, max_length=2_000, description="only these metrics, separated by commas")
    every: int = Field(1, ge=1, le=1_000_000, description="only every so many epochs")
    limit: int = Field(2_000, ge=1, le=MOST_POINTS, description="about how many epochs at most")

    @property
    def wanted(self) -> frozenset[str]:
        return frozenset(name.strip() for name in (self.names or "").split(",") if name.strip())


async def find_job(state: AppState, job_id: str, noun: str, kinds: Set[Kind]) -> Job:
    """Raises Problem 404 unless there is a job of one of these kinds."""
    job = await state.read(state.store.jobs.get, job_id) if _ID.fullmatch(job_id) else None
    if job is None or job.kind not in kinds:
        raise Problem(404, f"there is no {noun} with this id")
    return job


def show(
    state: AppState, job: Job, *, status: int = 200, headers: dict[str, str] | None = None, changed: bool = False
) -> Response:
    document = job_document(job, mlflow_ui_url=state.settings.mlflow_ui_url)
    response = json_response(document, status=status, headers=headers)
    response.tells_of_change = changed
    return response


async def submit(
    request: Request, state: AppState, kind: Kind, prepare: Prepare, query: SubmitQuery, idempotency_key: str | None
) -> Response:
    """Check the spec in the body and queue it, or find the job that an earlier request with the same key queued."""
    sent, owner = await read_document(request), caller_of(request).owner
    document, given = split(sent, query)
    options = submission.validated(JobOptions, given)
    deadline = None if options.deadline_minutes is None else time.time() + 60 * options.deadline_minutes
    asked = submission.Request(owner, options.name, options.priority, deadline, options.metadata)
    store, settings = state.store, state.settings

    def prepared() -> tuple[Job | NewJob, Idempotency | None]:
        promise = None
        if idempotency_key is not None:
            fingerprint = submission.fingerprint(kind, sent, query.model_dump())
            promise = Idempotency(owner, idempotency_key, fingerprint)
            # before all checks: a repeat finds its job even if what that needed has gone since
            if (earlier := store.jobs.promised(promise)) is not None:
                return earlier, promise
        if not state.readiness.has_room():
            raise Problem(507, "the service's disk is almost full; try again once something has been deleted")
        return prepare(document, asked, store, settings), promise

    wanted, promise = await in_thread(prepared)
    if isinstance(wanted, Job):
        job, is_new = wanted, False
    else:
        most = settings.max_active_jobs
        try:
            job, is_new = await state.write(store.jobs.submit, wanted, idempotency=promise, max_active=most)
        except NotFound as error:
            section = "base." if kind == "sweep" else ""
            raise InvalidInput(f"{section}data.imported: {error}") from error
    headers = {"Location": f"{PREFIX[job.kind]}/{job.id}"} | ({} if is_new else {"Idempotent-Replayed": "true"})
    return show(state, job, status=202, headers=headers, changed=True)


async def list_page(state: AppState, kind: Kind, query: ListQuery) -> Response:
    jobs, following = await in_thread(
        state.store.jobs.list, kind=kind, states=query.state or (), dataset=query.dataset, name=query.name,
        created_from=None if query.created_from is None else query.created_from.timestamp(),
        created_before=None if query.created_before is None else query.created_before.timestamp(),
        metadata=query.entries(), before=query.cursor, limit=query.limit,
    )  # fmt: skip
    items = [job_document(job, mlflow_ui_url=state.settings.mlflow_ui_url, whole=False) for job in jobs]
    return json_response({"items": items, "next": following})


async def edit(request: Request, state: AppState, job: Job) -> Response:
    patch = submission.validated(JobPatch, await read_document(request))
    _check_own(request, job)
    return show(state, await state.write(state.store.jobs.edit, job.id, patch.changes()), changed=True)


async def cancel(request: Request, state: AppState, job: Job) -> Response:
    _check_own(request, job)
    job = await state.write(state.store.jobs.cancel, job.id)
    await _settle_version(state, job)
    return show(state, job, status=202, changed=True)


async def delete(request: Request, state: AppState, job: Job) -> Response:
    _check_own(request, job)
    job = await state.write(state.store.jobs.delete, job.id)  # first: files that stay behind do no harm
    await _settle_version(state, job)
    for folder in (state.settings.run_directory(job.id), state.settings.job_directory(job.id)):
        await in_thread(discard, folder)
    return Response(status_code=204)


def watch(request: Request, state: AppState, job: Job, after: int, last_event_id: int | None) -> Response:
    """The job's events as a stream; 204 if it has ended and the client has seen all of them."""
    seen = min(after if last_event_id is None else last_event_id, job.last_seq)
    if job.is_terminal and seen == job.last_seq:
        return Response(status_code=204)
    owner = caller_of(request).owner
    state.feed.check_room(owner)
    return EventSourceResponse(state.feed.watch(job.id, seen, owner), headers=_UNBUFFERED)


async def read_log(state: AppState, job: Job, lines: int) -> Response:
    settings = state.settings
    files = [(settings.run_directory(job.id), "log.txt"), (settings.job_directory(job.id), "output.txt")]
    return CountedResponse(await in_thread(tail, files, lines), media_type="text/plain")


async def get_figure(state: AppState, job: Job, name: str, noun: str) -> Response:
    if not FIGURE.fullmatch(name) or name not in figure_names(job):
        raise Problem(404, f"the {noun} has no figure of this name; its links list those it has")
    return await in_thread(download, state.settings.run_directory(job.id), "figures", name)


def _check_own(request: Request, job: Job) -> None:
    """Raises Problem unless the job is the caller's to change."""
    if job.kind == "import":
        raise Problem(409, f"this job checks the data set {job.dataset}; to end it, delete the data set")
    check_may_change(request, job.owner)


async def _settle_version(state: AppState, job: Job) -> None:
    """If the job was to publish or index an embedding version and has ended, the version must not stay unfinished."""
    if job.kind not in ("publish", "index") or not job.is_terminal:
        return
    version = await in_thread(state.store.embeddings.get, str(job.spec["version"]))
    if version is not None:
        await state.write(reconciled, version, state.store)


def submitted(noun: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI: how a submission is answered, and what can be asked with the id in it."""
    followed = ("get_{}", "cancel_{}", "watch_{}", "read_{}_log", "read_{}_metrics")
    accepted = {
        "description": "Queued, now or by an earlier request with the same Idempotency-Key.",
        "headers": {
            "Location": {"description": "where it can be followed", "schema": {"type": "string"}},
            "Idempotent-Replayed": {"description": "`true` if it was queued before", "schema": {"type": "string"}},
        },
        "links": {
            name.format(noun): {"operationId": name.format(noun), "parameters": {"job_id": "$response.body#/id"}}
            for name in followed
        },
    }
    return {202: accepted, **refusals(408, 413, 415, 422, 429, 507)}


def watched(noun: str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI: how a request for events is answered."""
    stream = {
        "description": "All events from the first (or the next) to the last; then the stream ends.",
        "content": {"text/event-stream": {"schema": _EVENT}},
    }
    ended = {"description": f"The {noun} has ended and has no more events: do not connect again."}
    return {200: stream, 204: ended, **refusals(404, 422)}


BINARY = {"schema": {"type": "string", "format": "binary"}}
PARTS: dict[int | str, dict[str, Any]] = {
    206: {"description": "The part that `Range` asks for."},
    **refusals(400, 416),
}
FIGURES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Picture or page.",
        "content": dict.fromkeys(("image/png", "image/svg+xml", "text/html"), BINARY),
    },
    **PARTS,
    **refusals(404),
}
_EVENT = {  # of one event; an answer is a sequence of them
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "its number: 1, 2, 3, … without gaps"},
        "event": {"type": "string", "description": "its type"},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["id", "event", "data"],
    "example": {"id": "12", "event": "epoch", "data": '{"time": 1777887000.0, "epoch": 10, "metrics": {"loss": 4.2}}'},
}
