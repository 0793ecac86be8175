"""What the store hands out and takes: frozen records of its rows."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["train", "sweep", "import", "publish", "index"]
State = Literal["queued", "running", "cancelling", "succeeded", "failed", "cancelled"]
TERMINAL: frozenset[str] = frozenset({"succeeded", "failed", "cancelled"})
ACTIVE: tuple[State, ...] = ("queued", "running", "cancelling")
ALIAS = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
VERSION = re.compile(r"[0-9a-hjkmnp-tv-z]{26}")  # what `new_id` makes; an alias never looks like that
LATEST = "latest"  # follows the newest version by itself, as do names that begin with it and a dot
MOST_METADATA = 20  # entries that a job may carry
_ALIAS_LENGTH = 64
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32, lower case


@dataclass(frozen=True)
class Job:
    """A row of `jobs`. Times are seconds since 1970."""

    id: str
    kind: Kind
    state: State
    attempt: int  # 0 until first claimed
    priority: int
    name: str | None
    owner: str | None  # id of the key that submitted it
    spec: dict[str, Any]
    spec_hash: str
    dataset: str
    memory_bytes: int | None
    deadline: float | None
    created: float
    not_before: float
    started: float | None  # of the first attempt
    ended: float | None
    lease_owner: str | None
    lease_expires: float | None
    runner: dict[str, Any] | None  # how to find the process of this attempt
    infra_retries: int
    oom_retries: int
    failure_kind: str | None
    failure_message: str | None
    progress: dict[str, Any]
    metrics: dict[str, Any]
    result: dict[str, Any] | None
    relay: dict[str, Any]  # how far the run's events have been stored
    mlflow_run_id: str | None
    tracker_error: str | None
    last_seq: int
    cancel_requested: float | None
    metadata: dict[str, str] = field(default_factory=dict)  # what the client noted on it

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL


@dataclass(frozen=True)
class NewJob:
    """What a client asks for."""

    kind: Kind
    spec: dict[str, Any]
    spec_hash: str
    dataset: str
    owner: str | None = None
    name: str | None = None
    priority: int = 0
    deadline: float | None = None
    memory_bytes: int | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    is_uploaded: bool = False  # its data set is an uploaded version, which must still exist


@dataclass(frozen=True)
class Idempotency:
    """The client's promise that requests with this key are the same request."""

    owner: str | None
    key: str
    request_hash: str


@dataclass(frozen=True)
class Claim:
    """The right to change a running job; lost when another dispatcher takes it over, or another attempt starts."""

    job_id: str
    attempt: int
    owner: str

    @classmethod
    def on(cls, job: Job) -> Claim:
        """The claim by which `job` is held."""
        assert job.lease_owner is not None
        return cls(job.id, job.attempt, job.lease_owner)


@dataclass(frozen=True)
class NewEvent:
    """Something that happened to a job; numbered when stored."""

    type: str
    data: dict[str, Any] = field(default_factory=dict)
    epoch: int | None = None
    time: float | None = None  # None: now


@dataclass(frozen=True)
class Event:
    """A row of `events`; `seq` counts 1, 2, 3, … within a job."""

    job_id: str
    seq: int
    time: float
    type: str
    epoch: int | None
    data: dict[str, Any]


@dataclass(frozen=True)
class Dataset:
    """A row of `datasets`: one immutable version of an uploaded graph."""

    ref: str  # <name>.<version>
    name: str
    version: str
    state: Literal["checking", "ready", "failed"]
    job_id: str
    owner: str | None
    created: float
    options: dict[str, Any]
    about: dict[str, Any] | None  # counts, once ready
    bytes: int
    failure: str | None


@dataclass(frozen=True)
class Embedding:
    """A row of `embeddings`: one immutable version of published vectors."""

    version: str  # id of the training job that made them
    job_id: str  # of the job that publishes them
    state: Literal["publishing", "ready", "failed", "damaged"]
    owner: str | None
    name: str | None
    dataset: str  # the training job's, with its version
    created: float
    published: float | None
    about: dict[str, Any] | None  # service.embeddings.layout.VersionInfo without its files, once ready
    metrics: dict[str, Any]  # of the training job
    indexes: dict[str, dict[str, Any]]  # kind -> {"state": "building" | "ready" | "failed", "job": id, …}
    failure: str | None


@dataclass(frozen=True)
class Alias:
    """A row of `aliases`: a name that points to a version."""

    name: str
    version: str
    owner: str | None
    seq: int  # of its newest move
    moved: float
    automatic: bool  # follows the newest version by itself


@dataclass(frozen=True)
class AliasMove:
    """A row of `alias_moves`; `seq` counts 1, 2, 3, … within a name, also across its removal."""

    name: str
    seq: int
    version: str | None  # none: removed
    time: float
    owner: str | None  # who moved it
    reason: Literal["set", "rollback", "automatic", "removed"]


@dataclass(frozen=True)
class Snapshot:
    """All versions and aliases as they were at one moment."""

    revision: int
    versions: dict[str, Embedding]  # of all states; `about` without "export"
    aliases: dict[str, str]  # name -> version


@dataclass(frozen=True)
class Key:
    """An API key, without its secret."""

    id: str
    name: str
    scopes: frozenset[str]
    created: float
    expires: float | None
    revoked: bool
    last_used: float | None

    def allows(self, scope: str) -> bool:
        """admin may do all, submit may also read."""
        return "admin" in self.scopes or scope in self.scopes or (scope == "read" and "submit" in self.scopes)


@dataclass(frozen=True)
class DispatcherRecord:
    """A dispatcher that was alive when last seen."""

    id: str
    host: str
    pid: int
    seen: float
    info: dict[str, Any]


def new_id(after: str | None = None) -> str:
    """26 characters that sort by time: 48 bits of milliseconds, 80 random ones (a ULID in lower case).

    Args:
        after: an id that sorts before the new one, also if the clock was put back meanwhile.
    """
    milliseconds = int(time.time() * 1_000)
    if after is not None and VERSION.fullmatch(after):
        milliseconds = max(milliseconds, (_number(after) >> 80) + 1)
    number = (milliseconds << 80) | secrets.randbits(80)
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))


def _number(identity: str) -> int:
    number = 0
    for character in identity:
        number = (number << 5) | _ALPHABET.index(character)
    return number


def bare_name(dataset: str) -> str:
    """The name of a data set without its version (papers.0123456789ab -> papers)."""
    return re.sub(r"\.[0-9a-f]{12}$", "", dataset)


def automatic_aliases(dataset: str) -> tuple[str, str]:
    """The names that follow the newest version: of all, and of this data set alone.

    The latter is `latest.<name>`. An alias is in lower case and has at most 64 characters: a name that does not fit is
    lowered and cut, and ends with a hash of the whole, so that no two data sets share one (Cora: latest.cora-6631…).
    """
    name = bare_name(dataset)
    own = f"{LATEST}.{name}"
    if own != own.lower() or len(own) > _ALIAS_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        own = f"{own.lower()[: _ALIAS_LENGTH - len(digest) - 1]}-{digest}"
    return LATEST, own


def is_automatic(alias: str) -> bool:
    """Whether clients cannot set it."""
    return alias == LATEST or alias.startswith(f"{LATEST}.")
