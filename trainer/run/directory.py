"""The run directory: who may train in it, what it trains, and what has happened so far.

spec.json  plan.json  events.jsonl  log.txt  checkpoints/  embeddings/  metrics.json  figures/
"""

from __future__ import annotations

import fcntl
import json
import time
from pathlib import Path
from typing import IO, Any

from trainer.config import TrainSpec, parse_spec, spec_hash
from trainer.errors import Infrastructure, InvalidInput
from trainer.files.atomic import write_json
from trainer.files.documents import read_document
from trainer.files.journal import REWIND, Event, append, epoch_of, fold, read_journal

GRAPH_FILE = "graph.npz"  # a graph that was in memory (trainer.interactive.fit), there before the run is


class RunDirectory:
    """Opened by exactly one trainer at a time: a lock, released by the kernel even after kill -9, keeps others out."""

    def __init__(self, path: Path, spec: TrainSpec, lock: IO[str] | None):
        self.path, self.spec, self._lock = path, spec, lock
        self.events = path / "events.jsonl"

    @classmethod
    def open(cls, path: Path, spec: TrainSpec, *, resume: bool) -> RunDirectory:
        """Claim `path` for this spec.

        Raises:
            InvalidInput: the directory holds another run, or this one and `resume` was not asked for.
            Infrastructure: another process trains there, or the directory cannot be written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = (path / ".lock").open("w")
        except OSError as error:
            raise Infrastructure(f"{path}: cannot write a run there ({error}). Choose another --out.") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise Infrastructure(
                f"{path}: another process is training there. Wait for it or choose another --out."
            ) from error
        try:
            cls._check_owner(path, spec, resume)
        except BaseException:
            lock.close()
            raise
        write_json(path / "spec.json", spec.model_dump(mode="json"))
        for name in ("checkpoints", "embeddings", "figures"):
            (path / name).mkdir(exist_ok=True)
        return cls(path, spec, lock)

    @staticmethod
    def _check_owner(path: Path, spec: TrainSpec, resume: bool) -> None:
        if not (path / "spec.json").exists():
            if foreign := _foreign(path):
                raise InvalidInput(
                    f"{path}: holds other files ({', '.join(sorted(foreign)[:3])}). Choose an empty --out."
                )
            return
        if not resume:
            raise InvalidInput(f"{path}: holds a run already. Pass --resume to go on with it, or choose another --out.")
        stored = _stored_spec(path)
        if spec_hash(stored) != spec_hash(spec):
            raise InvalidInput(
                f"{path}: was started with another spec ({spec_hash(stored)[:12]}, not {spec_hash(spec)[:12]}). "
                "Resume with its own spec.json, or choose another --out."
            )

    @classmethod
    def attach(cls, path: Path, spec: TrainSpec) -> RunDirectory:
        """Join a run whose lock another process holds for us: a worker in its driver's run."""
        return cls(path, spec, None)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()

    @property
    def plan(self) -> dict[str, Any] | None:
        """What was decided when the run first started (trainer.planning.plan)."""
        file = self.path / "plan.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    def write_plan(self, document: dict[str, Any]) -> None:
        write_json(self.path / "plan.json", document)

    def record(self, kind: str, /, **fields: Any) -> Event:
        """Append one event to the journal and return it."""
        event = {"type": kind, "time": round(time.time(), 3), **fields}
        append(self.events, event)
        return event

    def rewind(self, epoch: int) -> None:
        """Take back what the journal says of epochs after a checkpoint, if it says anything: they are trained again."""
        if any(epoch_of(event) > epoch for event in read_events(self.path)):
            self.record(REWIND, epoch=epoch)

    def history(self) -> list[Event]:
        """The epoch events so far, each epoch once."""
        return [event for event in read_events(self.path) if event["type"] == "epoch"]


def is_taken(path: Path) -> bool:
    """Whether a process trains there at the moment."""
    try:
        with (path / ".lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def is_unused(path: Path) -> bool:
    """Whether a directory holds no run, and nothing but what a run leaves that is refused before it begins."""
    return not (path / "spec.json").exists() and not _foreign(path)


def _foreign(path: Path) -> list[str]:
    """Files in a directory without a run that no run would leave there."""
    ours = (".lock", "log.txt", GRAPH_FILE)
    beginnings = (".spec.json.", f".{GRAPH_FILE}.")  # if killed while writing them
    names = [entry.name for entry in path.iterdir()]
    return [name for name in names if name not in ours and not name.startswith(beginnings)]


def read_spec(path: Path) -> TrainSpec:
    """The spec a run directory was made with; a run that was moved has its graph where it is now."""
    spec = _stored_spec(path)
    files, own = spec.data.files, path.absolute() / GRAPH_FILE
    if files is None or files.npz is None or not own.exists():
        return spec
    named = Path(files.npz)
    if not named.is_absolute() or named.name != GRAPH_FILE or named == own:
        return spec
    return spec.with_({"data.files.npz": str(own)})


def _stored_spec(path: Path) -> TrainSpec:
    if not (path / "spec.json").exists():
        raise InvalidInput(f"{path}: is not a run directory (no spec.json). Give the --out of an `nml train`.")
    return parse_spec(read_document(path / "spec.json"))


def read_events(path: Path) -> list[Event]:
    """What holds of a run's journal: all events but those that a rewind took back."""
    return fold(read_journal(path / "events.jsonl"))
