"""From a job of the store to the document that clients read (service.api.schemas describes it)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticSerializationError, to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api.problems import clean
from service.store.clock import moment
from service.store.records import Job, Kind

JSON = "application/json"
UNCOUNTED_BYTES = 65_536  # of an answer; so many a connection holds for its client without waiting
_LONGEST_MESSAGE = 10_000  # characters of a failure
OWN_KINDS: tuple[Kind, ...] = ("import", "publish", "index")  # the service's own: shown by id, not listed
PREFIX: dict[Kind, str] = {"train": "/v1/jobs", "sweep": "/v1/sweeps", **dict.fromkeys(OWN_KINDS, "/v1/jobs")}


class CountedResponse(Response):
    """A response that may be large: then it is one of those that are limited together, and by key."""

    tells_of_change = False  # what it tells is done already, so it is sent whatever else is being sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self.body) <= UNCOUNTED_BYTES:
            await super().__call__(scope, receive, send)
            return
        with scope["app"].state.nml.in_flight.take(len(self.body), must=self.tells_of_change):
            await super().__call__(scope, receive, send)


def job_document(job: Job, *, mlflow_ui_url: str | None, whole: bool = True) -> dict[str, Any]:
    """All that a client may know of a job; in lists without what is long, its spec and its result."""
    failure = None
    if job.failure_kind is not None:
        failure = {"kind": job.failure_kind, "message": clean(job.failure_message or "", _LONGEST_MESSAGE)}
    document: dict[str, Any] = {
        "id": job.id, "kind": job.kind, "name": job.name, "state": job.state, "attempt": job.attempt,
        "priority": job.priority, "owner": job.owner, "created": moment(job.created), "started": moment(job.started),
        "ended": moment(job.ended), "deadline": moment(job.deadline), "metadata": job.metadata, "dataset": job.dataset,
        "spec_hash": job.spec_hash, "memory_bytes": job.memory_bytes,
        "retries": {"infra": job.infra_retries, "oom": job.oom_retries}, "progress": job.progress,
        "metrics": job.metrics, "failure": failure, "mlflow_run_id": job.mlflow_run_id,
        "tracker_error": job.tracker_error, "last_event": job.last_seq, "links": links(job, mlflow_ui_url),
    }  # fmt: skip
    if whole:
        document["result"] = (job.result or {}).get("metrics") or None
        document["spec"] = None if job.kind in OWN_KINDS else job.spec  # an import's names files of ours
    return document


def links(job: Job, mlflow_ui_url: str | None) -> dict[str, Any]:
    """Where what belongs to the job is to be found; none for what there is not, or not yet."""
    own = f"{PREFIX[job.kind]}/{job.id}"
    found: dict[str, Any] = {
        "self": own, "events": f"{own}/events", "log": f"{own}/log", "metrics": f"{own}/metrics",
        "cancel": None if job.is_terminal or job.kind == "import" else f"{own}/cancel", "embeddings": None,
        "figures": [f"{own}/figures/{name}" for name in figure_names(job)], "mlflow": None,
    }  # fmt: skip
    if has_embeddings(job):
        found["embeddings"] = f"{own}/embeddings/manifest.json"
    if mlflow_ui_url and job.mlflow_run_id:
        found["mlflow"] = f"{mlflow_ui_url.rstrip('/')}/#/runs/{job.mlflow_run_id}"
    if job.kind == "sweep":
        found |= {"trials": f"{own}/trials", "best": f"{own}/best"}
    return found


def figure_names(job: Job) -> list[str]:
    """The pictures that the job has left."""
    names = (job.result or {}).get("figures") or []
    return [name for name in names if isinstance(name, str)]


def has_embeddings(job: Job) -> bool:
    """Whether the job has left vectors."""
    return job.kind == "train" and bool((job.result or {}).get("embeddings"))


def encode(document: Any) -> bytes:
    """JSON. NaN and infinities become null; text that is no Unicode (a file name in an error) is made so."""
    try:
        return to_json(document, inf_nan_mode="null")
    except (PydanticSerializationError, UnicodeError, ValueError):
        return json.dumps(_writable(document), allow_nan=False).encode()


def json_response(document: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> CountedResponse:
    """A document as response. Not FastAPI's way (validate, copy, encode), which takes longer than all the rest."""
    return CountedResponse(encode(document), status_code=status, headers=headers, media_type=JSON)


def _writable(value: Any) -> Any:
    match value:
        case dict():
            return {_unicode(str(key)): _writable(item) for key, item in value.items()}
        case list() | tuple():
            return [_writable(item) for item in value]
        case str():
            return _unicode(value)
        case float() if not math.isfinite(value):
            return None
        case None | bool() | int() | float():
            return value
    return _unicode(repr(value))


def _unicode(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
