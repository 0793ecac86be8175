"""What a dispatcher asks of the place where jobs run, and the files through which the two talk.

A runner never starts the trainer itself but the shim (service.dispatch.shim), which starts it, watches over it and
leaves an outcome. In the job's own folder, jobs/<id>/, which must be on storage that both sides see:

    spec.json          what the trainer reads
    attempt-<n>.json   the launch file: what the shim starts
    outcome-<n>.json   what came of it. The shim makes the file before it starts anything, and only if there is none:
                       so an attempt is started once at most. Until the end it holds blanks (see `read_outcome`)
    stop-<n>           its presence asks the shim to end the trainer gently, where a signal cannot reach it
    heartbeat-<n>          touched for as long as a dispatcher holds this attempt
    output.txt         stdout and stderr of all attempts

Standard library only: the shim imports this.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

PYTHON = "python"  # as argv[0]: the interpreter that the shim itself runs in, wherever that is
MARKER = "NML_ATTEMPT"  # environment variable by which the processes of an attempt are known, also after a restart
BLANK = b" " * 8192  # room for an outcome, taken on disk while there is some


@dataclass(frozen=True)
class LaunchSpec:
    """One attempt at a job: all that a shim needs to know."""

    job_id: str
    attempt: int
    argv: tuple[str, ...]  # argv[0] may be PYTHON
    environment: Mapping[str, str]  # exactly what the trainer gets, with MARKER and NML_OUTCOME_FD
    directory: Path  # jobs/<id>
    memory_bytes: int | None = None  # none: no limit
    cpus: int = 1
    gpus: int = 0
    heartbeat_timeout_seconds: float = 900.0  # without a sign of life from a dispatcher
    stop_seconds: float = 30.0  # between SIGTERM and SIGKILL, where the shim itself ends the trainer
    inherit: tuple[str, ...] = field(default=())  # beginnings of names that the trainer gets from the shim's own

    @property
    def marker(self) -> str:
        """What MARKER holds: `<job id>.<attempt>`; also fit for a name where an attempt needs one."""
        return f"{self.job_id}.{self.attempt}"

    @property
    def launch_file(self) -> Path:
        return self.directory / f"attempt-{self.attempt}.json"

    @property
    def outcome_file(self) -> Path:
        return self.directory / f"outcome-{self.attempt}.json"

    @property
    def stop_file(self) -> Path:
        return self.directory / f"stop-{self.attempt}"

    @property
    def heartbeat_file(self) -> Path:
        return self.directory / f"heartbeat-{self.attempt}"

    @property
    def output_file(self) -> Path:
        return self.directory / "output.txt"


@dataclass(frozen=True)
class Alive:
    """It runs, or it is ending."""


@dataclass(frozen=True)
class Outcome:
    """How the trainer ended."""

    exit_code: int | None  # none: ended by `signal`, or never started
    signal: int | None = None
    kind: str | None = None  # what the trainer itself called its failure (trainer.errors), else the shim
    message: str | None = None
    oom_killed: bool = False  # by the kernel, for lack of memory


@dataclass(frozen=True)
class Gone:
    """There is no process any more, and none will come, and it left no outcome: someone killed the shim too."""

    message: str = "its process is gone without a trace"


@dataclass(frozen=True)
class NotStarted:
    """Nothing of the attempt ever ran, for a reason that is hardly the job's."""

    message: str
    pause: float  # seconds for which the dispatcher starts nothing else either


Status = Alive | Outcome | Gone
Ended = Outcome | Gone | NotStarted


class Refused(OSError):
    """The place takes other jobs, but not this one."""


class Runner(Protocol):
    """A place where jobs run. Methods may raise OSError where the place cannot be reached; the dispatcher tries again.

    Every call gets along with a `reference` from `intent` alone: the dispatcher may have been killed right after
    `start`. No attempt is ever started twice.
    """

    outlives_service: bool  # whether a dispatcher that is told to stop leaves its jobs running for the next one

    def intent(self, launch: LaunchSpec) -> dict[str, Any]:
        """What is known of a reference before the start; recorded first, so that no start is ever forgotten."""
        ...

    def start(self, launch: LaunchSpec) -> dict[str, Any]:
        """Start the shim on a launch file (`write_launch` comes first) and return the reference to it, JSON.

        Raises:
            Refused: nor will it ever be taken as it is.
            OSError: it was not started and will not be.
        """
        ...

    def poll(self, launch: LaunchSpec, reference: Mapping[str, Any] | None) -> Status:
        """How it is. Gone and Outcome are final: nothing of the attempt runs any more."""
        ...

    def stop(self, launch: LaunchSpec, reference: Mapping[str, Any] | None, *, force: bool) -> None:
        """Ask the trainer to end (SIGTERM; asking twice is asking once), or by force end all its processes."""
        ...

    def close(self) -> None:
        """Let go of what the runner itself holds; jobs stay as they are."""
        ...


def shim_command(launch_file: Path, *, python: str) -> list[str]:
    """What a runner starts. It should lead its process group (`exec` in front, if a shell is in between)."""
    return [python, "-P", "-m", "service.dispatch.shim", str(launch_file)]


def write_launch(launch: LaunchSpec) -> None:
    """Write the launch file whole or not at all; only its owner may read it, for it holds an environment.

    Raises:
        OSError: the disk is full, say.
    """
    document = {
        "job_id": launch.job_id, "attempt": launch.attempt, "argv": list(launch.argv),
        "environment": dict(launch.environment), "memory_bytes": launch.memory_bytes, "cpus": launch.cpus,
        "gpus": launch.gpus, "heartbeat_timeout_seconds": launch.heartbeat_timeout_seconds,
        "stop_seconds": launch.stop_seconds, "inherit": list(launch.inherit),
    }  # fmt: skip
    launch.directory.mkdir(parents=True, exist_ok=True)
    write_whole(launch.launch_file, json.dumps(document, indent=1))


def read_launch(file: Path) -> LaunchSpec:
    """The launch spec in a file.

    Raises:
        OSError, ValueError: there is none.
    """
    document = json.loads(file.read_text(encoding="utf-8"))
    known = document | {"argv": tuple(document["argv"]), "inherit": tuple(document["inherit"])}
    return LaunchSpec(directory=file.absolute().parent, **known)


def write_whole(file: Path, text: str) -> None:
    """A file of the owner's alone that is complete or absent."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def take_attempt(launch: LaunchSpec, *, with_room: bool = True) -> int | None:
    """The right to start this attempt, as the descriptor of its outcome file; None if it was taken before.

    A runner that finds no process takes it too, so that a shim which is late to start does not start any more; it
    will write no outcome, and needs no room for one.

    Raises:
        OSError: the disk is full, say; then nothing may be started, because its outcome could not be told.
    """
    launch.directory.mkdir(parents=True, exist_ok=True)  # a dispatcher may have been killed before it did that
    try:
        descriptor = os.open(launch.outcome_file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return None
    try:
        if with_room:
            os.write(descriptor, BLANK)
            os.fsync(descriptor)
    except OSError:
        os.close(descriptor)
        launch.outcome_file.unlink(missing_ok=True)
        raise
    return descriptor


def write_outcome(descriptor: int, document: dict[str, Any]) -> None:
    """Overwrite the blanks in place, which needs no room on the disk; the message is cut to what fits."""
    text = json.dumps(document).encode()
    while len(text) > len(BLANK):
        document = document | {"message": str(document["message"])[: -(len(text) - len(BLANK)) // 2 - 16]}
        text = json.dumps(document).encode()
    os.pwrite(descriptor, text.ljust(len(BLANK)), 0)
    os.fsync(descriptor)


def is_superseded(launch: LaunchSpec) -> bool:
    """Whether a later attempt at the job has a launch file, so that this one was given up."""
    try:
        names = os.listdir(launch.directory)
    except OSError:
        return False
    numbers = (name.removeprefix("attempt-").removesuffix(".json") for name in names if name.startswith("attempt-"))
    return any(int(number) > launch.attempt for number in numbers if number.isdigit())


def read_outcome(launch: LaunchSpec) -> Outcome | None:
    """The outcome of an attempt; None while there is none, or if its shim died over it."""
    try:
        document = json.loads(launch.outcome_file.read_bytes())
        return Outcome(
            document["exit_code"], document["signal"], document["kind"], document["message"], document["oom_killed"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
