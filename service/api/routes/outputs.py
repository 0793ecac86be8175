"""What a job tells and leaves: events, log, figures by epoch, pictures, embeddings."""

from __future__ import annotations

import math
from itertools import chain
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query, Request, Response
from starlette.responses import PlainTextResponse

from service.api.events.stream import EventStream
from service.api.files import EMBEDDING_FILES, FIGURE, download, tail
from service.api.openapi import refusals
from service.api.problems import Problem
from service.api.responses import figure_names, has_embeddings, json_response
from service.api.routes.work import Resource, find_job
from service.api.schemas import Series
from service.api.series import MOST_POINTS, best_so_far, curve, trials
from service.api.state import state_of
from service.api.threads import in_thread, limited
from service.store.records import Job
from trainer.errors import InvalidInput
from tuner.journal import read_sweep

_BINARY = {"schema": {"type": "string", "format": "binary"}}
_PICTURES = dict.fromkeys(("image/png", "image/svg+xml", "text/html"), _BINARY)
_LAST_SEQ = 2**53


def add_outputs(router: APIRouter, resource: Resource) -> None:
    """Add the resource's routes for what comes out of a job."""
    noun, one = resource.noun, resource.path + "/{job_id}"
    shared: dict[str, Any] = {"tags": [resource.tag]}

    @router.get(
        one + "/events", response_class=Response, operation_id=f"watch_{noun}", summary=f"Watch a {noun}",
        responses={
            200: {
                "description": "Its events from the first (or the next) to the last; then the stream ends.",
                "content": {"text/event-stream": {"schema": _EVENT}},
            },
            204: {"description": f"The {noun} has ended and there is nothing more to tell: do not connect again."},
            **refusals(404, 422),
        },
        **shared,
    )  # fmt: skip
    async def events(
        request: Request,
        job_id: str,
        after: Annotated[int, Query(ge=0, le=_LAST_SEQ, description="number of the last event already seen")] = 0,
        last_event_id: Annotated[int | None, Header(ge=0, le=_LAST_SEQ, description="goes before `after`")] = None,
    ) -> Response:
        """Server-sent events: `id` is the event's number, `event` its type, `data` JSON. Types: `state`, `epoch`,
        `step`, `phase`, `checkpoint` and others that the run writes. `rewind` takes back the
        epochs after its `epoch`: a resumed run trains them again."""
        job = await find_job(request, job_id, resource)
        feed = state_of(request).feed
        seen = min(after if last_event_id is None else last_event_id, job.last_seq)
        if job.is_terminal and seen == job.last_seq:
            return Response(status_code=204)
        feed.check_room()
        return EventStream(feed.watch(job_id, seen))

    @router.get(
        one + "/log", response_class=PlainTextResponse, operation_id=f"read_{noun}_log", summary="Read its log",
        responses=refusals(404, 422), **shared,
    )  # fmt: skip
    async def log(
        request: Request, job_id: str, lines: Annotated[int, Query(alias="tail", ge=1, le=10_000)] = 1_000
    ) -> Response:
        """The last lines of what the run logged, or, before it came to that, of what its process printed."""
        await find_job(request, job_id, resource)
        settings = state_of(request).settings
        places = [(settings.run_directory(job_id), "log.txt"), (settings.job_directory(job_id), "output.txt")]
        return PlainTextResponse(await in_thread(tail, places, lines))

    @router.get(
        one + "/metrics", response_model=Series, operation_id=f"read_{noun}_metrics", summary="Read figures over time",
        responses=refusals(404, 422), **shared,
    )  # fmt: skip
    async def metrics(
        request: Request,
        job_id: str,
        names: Annotated[
            str | None, Query(max_length=2_000, description="only these figures, separated by commas")
        ] = None,
        every: Annotated[int, Query(ge=1, le=1_000_000, description="only every so many epochs")] = 1,
        limit: Annotated[int, Query(ge=1, le=MOST_POINTS, description="about how many epochs at most")] = 2_000,
    ) -> Response:
        job = await find_job(request, job_id, resource)
        store, settings = state_of(request).store, state_of(request).settings
        wanted = frozenset(name.strip() for name in (names or "").split(",") if name.strip())

        def collect() -> dict[str, Any]:
            if job.kind == "sweep":
                points = best_so_far(_journal(job, settings.run_directory(job_id)))
                return trials(points, every=every, most=limit, names=wanted)
            newest = job.metrics.get("epoch")  # how many there are, so that only those to be shown need to be read
            if not isinstance(newest, int):
                return curve(store.events.series(job_id), every=every, most=limit, names=wanted)
            step = max(every, math.ceil(newest / limit))
            last = store.events.epoch(job_id, newest)
            events = chain(store.events.series(job_id, every=step), [] if last is None else [last])
            return curve(events, every=step, most=limit, names=wanted)

        return json_response(await limited(state_of(request).series, collect))

    @router.get(
        one + "/figures/{name}", response_class=Response, operation_id=f"get_{noun}_figure", summary="Get a picture",
        responses={200: {"description": "Picture or page.", "content": _PICTURES}, **_PARTS, **refusals(404)},
        **shared,
    )  # fmt: skip
    async def figure(request: Request, job_id: str, name: str) -> Response:
        job = await find_job(request, job_id, resource)
        if not FIGURE.fullmatch(name) or name not in figure_names(job):
            raise Problem(404, f"the {noun} has no figure of this name; its links list those there are")
        return await in_thread(download, state_of(request).settings.run_directory(job_id), "figures", name)


def add_embeddings(router: APIRouter, resource: Resource) -> None:
    """Add the route for what only training leaves."""

    @router.get(
        resource.path + "/{job_id}/embeddings/{file}", response_class=Response, operation_id="get_embeddings",
        summary="Get a file of the embeddings",
        responses={
            200: {
                "description": "manifest.json names the others and their checksums: vectors [N, dim] in float32, and "
                "the ids of their rows in ids.npy (whole numbers) or ids.json (text).",
                "content": {"application/octet-stream": _BINARY, "application/json": {"schema": {}}},
            },
            **_PARTS, **refusals(404, 409, 422),
        },
        tags=[resource.tag],
    )  # fmt: skip
    async def embeddings(
        request: Request,
        job_id: str,
        file: Annotated[Literal["vectors.npy", "ids.npy", "ids.json", "manifest.json"], Path()],
    ) -> Response:
        """With ranges and entity tags, so that a broken download can go on."""
        job = await find_job(request, job_id, resource)
        assert file in EMBEDDING_FILES
        if not job.is_terminal:
            raise Problem(409, f"the job is {job.state}; there are embeddings once it has succeeded")
        if not has_embeddings(job):
            raise Problem(404, "the job has left no embeddings")
        return await in_thread(download, state_of(request).settings.run_directory(job_id), "embeddings", file)


def _journal(job: Job, folder: Any) -> list[dict[str, Any]]:
    try:
        return read_sweep(folder)[2]
    except InvalidInput:  # it has not begun
        return []


_PARTS: dict[int | str, dict[str, Any]] = {
    206: {"description": "The part that `Range` asks for."},
    **refusals(400, 416),
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
