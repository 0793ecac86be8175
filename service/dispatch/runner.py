"""The interface to where jobs run, and the files of an attempt.

A runner does not start the trainer itself but the shim (service.dispatch.shim), which starts it, watches it and records
the outcome. The files are in the job's own folder, jobs/<id>/, on storage that dispatcher and shim share:

    spec.json          what the trainer reads
    attempt-<n>.json   the launch file: what the shim starts
    outcome-<n>.json   how it ended. The shim creates the file before it starts anything, and only if there is none:
                       so an attempt is started at most once. Until the end it holds blanks (see `read_outcome`)
    stop-<n>           its presence asks the shim to stop the trainer gracefully, where a signal cannot reach it
    heartbeat-<n>      touched for as long as a dispatcher holds this attempt
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

PYTHON = "python"  # as argv[0]: the interpreter that runs the shim, wherever that is
MARKER = "NML_ATTEMPT"  # environment variable that identifies the processes of an attempt, also after a restart
BLANK = b" " * 8192  # space for an outcome, reserved while the disk has some


@dataclass(frozen=True)
class LaunchSpec:
    """What a shim starts for one attempt at a job."""

    job_id: str
    attempt: int
    argv: tuple[str, ...]  # argv[0] may be PYTHON
    environment: Mapping[str, str]  # all that the trainer gets, besides NML_OUTCOME_FD
    directory: Path  # jobs/<id>
    memory_bytes: int | None = None  # None: no limit
    cpus: int = 1
    gpus: int = 0
    heartbeat_timeout_seconds: float = 900.0  # without a heartbeat, after which the shim stops the trainer
    stop_seconds: float = 30.0  # between SIGTERM and SIGKILL, where the shim itself stops the trainer
    inherit: tuple[str, ...] = field(default=())  # prefixes of variables passed on from the shim's own environment

    @property
    def marker(self) -> str:
        """The value of MARKER: `<job id>.<attempt>`."""
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
    """It runs, or is about to end."""


@dataclass(frozen=True)
class Outcome:
    """How the trainer ended."""

    exit_code: int | None  # None: ended by `signal`, or never started
    signal: int | None = None
    kind: str | None = None  # of failure (trainer.errors), as the trainer reported it, else the shim
    message: str | None = None
    oom_killed: bool = False  # by the kernel, for lack of memory


@dataclass(frozen=True)
class Gone:
    """No process of the attempt runs or will run, and there is no outcome: the shim was killed too."""

    message: str = "the process is gone and left no outcome"


@dataclass(frozen=True)
class NotStarted:
    """Nothing of the attempt ever ran, most likely for a reason that has nothing to do with the job."""

    message: str
    pause: float  # seconds for which the dispatcher starts no other job either


Status = Alive | Outcome | Gone
Ended = Outcome | Gone | NotStarted


class Refused(OSError):
    """This job cannot run there, though others may."""


class Runner(Protocol):
    """Where jobs run. Any method may raise OSError while that cannot be reached; the dispatcher then tries again.

    A `reference` may be the one from `intent`, because the dispatcher may have been killed right after `start`. No
    attempt is ever started twice.
    """

    outlives_service: bool  # whether a dispatcher that stops leaves its jobs running for the next one

    def intent(self, launch: LaunchSpec) -> dict[str, Any]:
        """What is known of the reference before the start; recorded first, so that no start is forgotten."""
        ...

    def start(self, launch: LaunchSpec) -> dict[str, Any]:
        """Start the shim on the launch file, which must have been written, and return a JSON reference to it.

        Raises:
            Refused: this job was not started, and never will be as it is.
            OSError: it was not started, and will not be.
        """
        ...

    def poll(self, launch: LaunchSpec, reference: Mapping[str, Any] | None) -> Status:
        """Its status. Gone and Outcome are final: no process of the attempt is left."""
        ...

    def stop(self, launch: LaunchSpec, reference: Mapping[str, Any] | None, *, force: bool) -> None:
        """Ask the trainer to stop (it gets one SIGTERM, however often this is called), or kill all its processes."""
        ...

    def close(self) -> None:
        """Release the runner's own resources; jobs go on."""
        ...


def shim_command(launch_file: Path, *, python: str) -> list[str]:
    """What a runner starts. It should lead its process group: put `exec` in front if a shell starts it."""
    return [python, "-P", "-m", "service.dispatch.shim", str(launch_file)]


def write_launch(launch: LaunchSpec) -> None:
    """Write the launch file whole or not at all; only its owner may read it, for it holds an environment.

    Raises:
        OSError: such as a full disk.
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
        OSError, ValueError: there is none, or it cannot be read.
    """
    document = json.loads(file.read_text(encoding="utf-8"))
    known = document | {"argv": tuple(document["argv"]), "inherit": tuple(document["inherit"])}
    return LaunchSpec(directory=file.absolute().parent, **known)


def write_whole(file: Path, text: str) -> None:
    """Write a file that is complete or absent, and that only its owner may read."""
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
    """Claim the right to start this attempt: the descriptor of its outcome file, or None if it was claimed before.

    A runner that finds no process claims it too, so that a shim which starts late starts nothing. It will write no
    outcome, and needs no room for one.

    Raises:
        OSError: such as a full disk; then nothing may be started, because its outcome could not be recorded.
    """
    launch.directory.mkdir(parents=True, exist_ok=True)  # a dispatcher may have been killed before it did so
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
    """Overwrite the blanks in place, which needs no further room on the disk; the message is cut to fit."""
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
    """The outcome of an attempt; None while there is none, or if the shim died before it was written."""
    try:
        document = json.loads(launch.outcome_file.read_bytes())
        return Outcome(
            document["exit_code"], document["signal"], document["kind"], document["message"], document["oom_killed"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
