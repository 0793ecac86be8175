"""One run as MLflow sees it: where it is kept, how it is found again, and what it is told.

Everything here waits for the tracker, may raise whatever MLflow raises, and may be called again after it raised: a
repeated call finishes what the first one began and stores nothing twice. `trainer.tracking` calls it from its thread.
"""

from __future__ import annotations

import json
import math
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

Point = tuple[str, float, int, int]  # metric name, value, time in milliseconds, step

# What MLflow accepts (mlflow.utils.validation in 3.17); older servers accept no less but for the length of a value.
MAX_METRICS, _MAX_PARAMS, _MAX_KEY, _MAX_VALUE = 1_000, 100, 250, 6_000
_KEY_TAG = "nml_key"  # finds a run that was created but whose id never reached us
_PARENT_TAG = "mlflow.parentRunId"  # what MLflow's pages nest runs by
_NOTE = "tracking.json"

# Set before MLflow is imported and only where the user has not chosen. Retries are ours, because MLflow's last minutes
# and cannot be interrupted; the request timeout bounds a server that accepts and never answers.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",  # machines without internet, and nobody asked
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # schema creation and stack traces; trainer.tracking warns once instead
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def prepare_environment() -> None:
    """Keep MLflow quick to fail, quiet and at home. Call it from the main thread: C code may be reading environ."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@dataclass(frozen=True)
class About:
    """What MLflow is told of a run when it begins."""

    directory: Path  # where tracking.json lies, and below which uploaded files do
    experiment: str
    name: str
    params: Mapping[str, Any]  # may be nested; leaves are told by dotted key
    tags: Mapping[str, str]
    # Gives the MLflow id of the run that this one is nested in; None: not known yet, so ask again. It raises if that
    # will never be known.
    parent: Callable[[], str | None] | None = None


def ended_as(directory: Path) -> str | None:
    """The status with which the MLflow run of a directory was closed for good; None: it was not, or there is none."""
    return _read_note(directory).get("status")


def note_error(directory: Path, error: str | None) -> None:
    """Keep in <directory>/tracking.json why the tracker does not know all; none: it does. Raises OSError."""
    path = directory / _NOTE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        document = None
    document = document if isinstance(document, dict) else {}
    if document.get("error") == error:
        return
    document.pop("error", None)
    _write_document(path, document if error is None else document | {"error": error})


def close_run(directory: Path, status: str, *, uri: str, home: Path, reason: str) -> bool:
    """Close the run of a directory whose trainer cannot do it any more; whether there was one to close.

    Waits for the tracker and raises whatever MLflow raises. A run that was closed for good stays as it is, and none is
    created.
    """
    note = _read_note(directory)
    if "key" not in note or "status" in note:
        return False
    run = TrackedRun(About(directory, _experiment_of(directory), "", {}, {}), uri=uri, home=home)
    return run.close_from_outside(note, status, {"error": reason})


class TrackedRun:
    """The MLflow run that belongs to one directory; its id survives restarts in <directory>/tracking.json."""

    def __init__(self, about: About, *, uri: str, home: Path) -> None:
        self.run_id: str | None = None
        self._about, self._uri, self._home = about, uri, home
        self._client: Any = None
        self._last_step: dict[str, int] = {}  # per metric: a resumed run repeats epochs, MLflow would keep both

    def open(self) -> None:
        """Find the run of this directory, or create it, and tell its parameters and tags; the parent must be known."""
        note = _read_note(self._about.directory)
        note.setdefault("key", uuid.uuid4().hex)
        note.pop("status", None)  # it goes on
        self._write_note(note)  # before the run exists, so that a crash in between leaves no orphan
        if self._client is None:
            self._client = self._connect()
        parent = self._about.parent() if self._about.parent else None
        nesting = {} if parent is None else {_PARENT_TAG: parent}
        run = self._find(note)
        if run is None:
            run = self._create({_KEY_TAG: note["key"], **nesting})
        self.run_id = run.info.run_id
        self._write_note(note | {"run_id": self.run_id})
        self._describe(run, {**self._about.tags, **nesting})

    def log(self, points: Sequence[Point]) -> int:
        """Store points, at most MAX_METRICS, except those of steps already stored. Returns how many were stored."""
        from mlflow.entities import Metric

        last_step, new = dict(self._last_step), []
        for name, value, time, step in points:
            if step > last_step.get(name, -1):
                last_step[name] = step
                new.append(Metric(name, value, time, step))
        if new:
            self._client.log_batch(self.run_id, metrics=new)
        self._last_step = last_step  # only now: if that raised, the points must be sent again
        return len(new)

    def upload(self, paths: Iterable[Path]) -> None:
        """Copy files of the directory to the artifacts, under the same folders."""
        for path in paths:
            folder = path.relative_to(self._about.directory).parent.as_posix()
            self._client.log_artifact(self.run_id, str(path), None if folder == "." else folder)

    def end(self, status: str, tags: Mapping[str, str], *, final: bool) -> None:
        """Set the status: FINISHED, FAILED or KILLED; if it is final, note that nothing is left to be told."""
        self._tag(tags)
        self._client.set_terminated(self.run_id, status)
        if final:
            self._write_note(_read_note(self._about.directory) | {"status": status})

    def close_from_outside(self, note: Mapping[str, str], status: str, tags: Mapping[str, str]) -> bool:
        """Close the run that the note speaks of; whether MLflow knows it."""
        self._client = self._connect()
        if "run_id" not in note and self._client.get_experiment_by_name(self._about.experiment) is None:
            return False
        run = self._find(note)
        if run is None:
            return False
        self.run_id = run.info.run_id
        self._write_note({**note, "run_id": run.info.run_id})
        self.end(status, tags, final=True)
        return True

    def _connect(self) -> Any:
        from mlflow import MlflowClient

        with _creation_lock(self._uri):
            return MlflowClient(tracking_uri=self._uri)

    def _find(self, note: Mapping[str, str]) -> Any | None:
        from mlflow.exceptions import MlflowException

        if "run_id" in note:
            try:
                run = self._client.get_run(note["run_id"])
            except MlflowException as error:
                if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    raise
            else:
                return run if run.info.lifecycle_stage == "active" else None
        found = self._client.search_runs([self._experiment_id()], f"tags.{_KEY_TAG} = '{note['key']}'", max_results=1)
        return self._client.get_run(found[0].info.run_id) if found else None

    def _create(self, tags: Mapping[str, str]) -> Any:
        return self._client.create_run(self._experiment_id(), run_name=self._about.name, tags=tags)

    def _experiment_id(self) -> str:
        from mlflow.exceptions import MlflowException

        name = self._about.experiment
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            # A server chooses where artifacts go; with a bare database MLflow would choose the current directory.
            local = urlsplit(self._uri).scheme not in ("http", "https", "databricks")
            location = (self._home / "mlartifacts").as_uri() if local else None
            try:
                return str(self._client.create_experiment(name, artifact_location=location))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            experiment = self._client.get_experiment_by_name(name)  # another run was quicker
        return str(experiment.experiment_id)

    def _describe(self, run: Any, tags: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        if run.info.status != "RUNNING":
            self._client.update_run(self.run_id, status="RUNNING")
        if "error" in run.data.tags:
            self._client.delete_tag(self.run_id, "error")  # of the attempt before this one
        self._last_step = {metric.key: metric.step for metric in run.data.to_proto().metrics}

        params = {entity_name(key): _text(value) for key, value in flatten(self._about.params).items()}
        known = run.data.params
        # MLflow refuses to change a parameter. A retry may have a smaller tile: say so in a tag instead.
        changed = {f"changed.{key}": value for key, value in params.items() if known.get(key, value) != value}
        for part in _parts([item for item in params.items() if item[0] not in known], _MAX_PARAMS):
            self._client.log_batch(self.run_id, params=[Param(*item) for item in part])
        self._tag({**tags, **changed})

    def _tag(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        for part in _parts([(entity_name(key), _text(value)) for key, value in tags.items()], _MAX_PARAMS):
            self._client.log_batch(self.run_id, tags=[RunTag(*item) for item in part])

    def _write_note(self, note: Mapping[str, str]) -> None:
        kind = urlsplit(self._uri).scheme or "file"  # the kind only: an address may hold a password
        document = {"uri_kind": kind, "experiment": self._about.experiment, **note}
        _write_document(self._about.directory / _NOTE, document)


def _write_document(path: Path, document: Mapping[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{_NOTE}.{os.getpid()}.part")
    part.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    os.replace(part, path)


def _read_note(directory: Path) -> dict[str, str]:
    try:
        note = json.loads((directory / _NOTE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}  # none, or not ours: a new run is better than none
    known = {key: note.get(key) for key in ("key", "run_id", "status")} if isinstance(note, dict) else {}
    return {key: value for key, value in known.items() if isinstance(value, str) and re.fullmatch(r"[\w-]+", value)}


def _experiment_of(directory: Path) -> str:
    """The experiment that a directory's note names; it has one, or it is not ours."""
    note = json.loads((directory / _NOTE).read_text(encoding="utf-8"))
    return str(note.get("experiment", ""))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves of nested mappings by dotted key."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            leaves.update(flatten(value, f"{prefix}{key}."))
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def numeric_leaves(tree: Any) -> dict[str, float]:
    """Numbers and truth values of nested mappings, by a name MLflow accepts; NaN and infinities stay, lists do not."""
    leaves = flatten(tree) if isinstance(tree, Mapping) else {}
    return {entity_name(key): _number(value) for key, value in leaves.items() if isinstance(value, Real)}


def entity_name(key: str) -> str:
    """A name MLflow accepts: word characters, dots, dashes, spaces and slashes that read as a plain relative path."""
    parts = re.sub(r"[^\w\-. /]", "_", key)[:_MAX_KEY].split("/")
    name = "/".join(part for part in parts if part not in ("", ".", ".."))
    return re.sub(r"^\.\.", "__", name) or "_"


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later: lost connections, timeouts, overload, a locked database."""
    status = getattr(error, "get_http_status_code", None)  # MlflowException, without importing MLflow to name it
    if status is not None:
        return status() >= 500 or status() in (408, 429)
    if isinstance(error, PermissionError | FileExistsError | FileNotFoundError | NotADirectoryError):
        return False
    return isinstance(error, OSError) or type(error).__module__.startswith("sqlalchemy")


def _number(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer beyond the largest double
        return math.inf if value > 0 else -math.inf


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 1] + "…"


def _parts(items: Sequence[tuple[str, str]], size: int) -> Iterator[Sequence[tuple[str, str]]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _creation_lock(uri: str) -> AbstractContextManager[Any]:
    """Keeps two processes from creating one SQLite schema at once: MLflow itself does not, and the second one fails."""
    prefix, _, rest = uri.partition(":///")
    if prefix != "sqlite" or not rest:
        return nullcontext()
    from filelock import FileLock

    path = Path(rest.partition("?")[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(f"{path}.lock", timeout=60)
