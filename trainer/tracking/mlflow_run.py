"""One MLflow run: how it is found again, and how it is told points, files and its end.

Everything here waits for MLflow, may raise whatever MLflow raises, and may be called again after it raised: a repeated
call finishes what the first one began and stores nothing twice. What MLflow already has, it says itself: of each metric
only steps after its last one are sent. So of an epoch that is trained twice, after a rewind, MLflow keeps the first.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from trainer.files.atomic import write_json
from trainer.tracking.source import Description, Ending, Point, flatten, read_json

T = TypeVar("T")

# What MLflow accepts (mlflow.utils.validation in 3.17); older servers accept no less but for the length of a value.
_MAX_METRICS, _MAX_PARAMS, _MAX_KEY, _MAX_VALUE = 1_000, 100, 250, 6_000
_KEY_TAG = "nml_key"  # finds a run that was created but whose id never reached us
_PARENT_TAG = "mlflow.parentRunId"  # what MLflow's pages nest runs by
_MISSING = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")

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
    """Make MLflow quick to fail and quiet. Call it from the main thread: C code may be reading environ."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


class State:
    """A directory's tracking.json: the MLflow run of the directory, whether it is closed, and the last error.

    key: found in MLflow too, as a tag. status: set once the run is closed for good and everything was sent.
    """

    def __init__(self, directory: Path):
        self._file = directory / "tracking.json"
        found = read_json(self._file)  # none, or not ours: a new run is better than none
        self._fields = {name: value for name, value in found.items() if isinstance(value, str)}

    def get(self, name: str) -> str | None:
        value = self._fields.get(name)
        return value if name in ("error", "experiment") or re.fullmatch(r"[\w-]+", value or "") else None

    def update(self, **fields: str | None) -> None:
        """Change fields, on disk when this returns; None removes one. Raises OSError."""
        changed = {name: value for name, value in (self._fields | fields).items() if value is not None}
        if changed != self._fields:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self._file, changed)
            self._fields = changed


class Server:
    """MLflow, as all runs of one thread share it.

    Args:
        uri: where it is.
        home: where the artifacts of a bare database are.
        check: called before each request; raises if nobody waits for it any more.
    """

    def __init__(self, uri: str, home: Path, check: Callable[[], None]):
        self.uri, self._home, self._check = uri, home, check
        self._client: Any = None
        self.sent = 0  # points

    @property
    def client(self) -> Any:
        self._check()
        if self._client is None:
            from mlflow import MlflowClient

            with _creation_lock(self.uri):
                self._client = MlflowClient(tracking_uri=self.uri)
        return self._client

    def experiment_id(self, name: str) -> str:
        """That of an experiment, created if there is none."""
        from mlflow.exceptions import MlflowException

        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            # A server chooses where artifacts go; with a bare database MLflow would choose the current directory.
            local = urlsplit(self.uri).scheme not in ("http", "https", "databricks")
            location = (self._home / "mlartifacts").as_uri() if local else None
            try:
                return str(self.client.create_experiment(name, artifact_location=location))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            experiment = self.client.get_experiment_by_name(name)  # another run was quicker
        return str(experiment.experiment_id)


class MlflowRun:
    """The MLflow run that belongs to one directory."""

    def __init__(self, server: Server, directory: Path, run_id: str):
        self.run_id = run_id
        self._server, self._directory = server, directory
        self._last_step: dict[str, int] = {}

    @classmethod
    def opened(cls, server: Server, directory: Path, about: Description, *, parent: str | None) -> MlflowRun:
        """The run of a directory, created if MLflow has none, with status, parameters and tags as they should be."""
        state, kind = State(directory), urlsplit(server.uri).scheme or "file"  # no more: an address may hold a password
        key = state.get("key") or uuid.uuid4().hex
        # Before the run exists, so that a crash in between leaves no orphan; without status and error: it goes on.
        state.update(uri_kind=kind, experiment=about.experiment, key=key, status=None, error=None)
        nesting = {} if parent is None else {_PARENT_TAG: parent}
        found = _find(server, state)
        if found is None:
            experiment = server.experiment_id(about.experiment)
            found = server.client.create_run(experiment, run_name=about.name, tags={_KEY_TAG: key, **nesting})
        state.update(run_id=found.info.run_id)
        run = cls(server, directory, found.info.run_id)
        run._describe(found, about.params, {**about.tags, **nesting})
        return run

    @classmethod
    def found(cls, server: Server, directory: Path) -> MlflowRun | None:
        """The run of a directory if MLflow has one; creates nothing."""
        state = State(directory)
        found = _find(server, state) if state.get("key") else None
        if found is None:
            return None
        state.update(run_id=found.info.run_id)
        return cls(server, directory, found.info.run_id)

    def log(self, points: Iterable[Point]) -> None:
        """Store points, except those of steps already stored."""
        from mlflow.entities import Metric

        new, last_step = [], dict(self._last_step)
        for name, value, milliseconds, step in points:
            key = entity_name(name)
            if step > last_step.get(key, -1):
                last_step[key] = step
                new.append(Metric(key, value, milliseconds, step))
        for part in _parts(new, _MAX_METRICS):
            self._server.client.log_batch(self.run_id, metrics=part)
            self._last_step |= {metric.key: metric.step for metric in part}  # not before: an error sends them again
            self._server.sent += len(part)

    def upload(self, paths: Iterable[Path]) -> None:
        """Copy files of the directory to the artifacts, under the same folders."""
        for path in paths:
            folder = path.relative_to(self._directory).parent.as_posix()
            self._server.client.log_artifact(self.run_id, str(path), None if folder == "." else folder)

    def end(self, ending: Ending) -> None:
        """Set the status; if it is final, note that everything was sent."""
        self._tag(ending.tags)
        self._server.client.set_terminated(self.run_id, ending.status)
        if ending.final:
            State(self._directory).update(status=ending.status)

    def _describe(self, found: Any, params: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        client = self._server.client
        if found.info.status != "RUNNING":
            client.update_run(self.run_id, status="RUNNING")
        if "error" in found.data.tags:
            client.delete_tag(self.run_id, "error")  # of the attempt before this one
        self._last_step = {metric.key: metric.step for metric in found.data.to_proto().metrics}

        texts = {entity_name(key): _text(value) for key, value in flatten(params).items()}
        known = found.data.params
        # MLflow refuses to change a parameter. A retry may have a smaller tile: say so in a tag instead.
        changed = {f"changed.{key}": value for key, value in texts.items() if known.get(key, value) != value}
        for part in _parts([Param(*item) for item in texts.items() if item[0] not in known], _MAX_PARAMS):
            client.log_batch(self.run_id, params=part)
        self._tag({**tags, **changed})

    def _tag(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        for part in _parts([RunTag(entity_name(key), _text(value)) for key, value in tags.items()], _MAX_PARAMS):
            self._server.client.log_batch(self.run_id, tags=part)


def _find(server: Server, state: State) -> Any | None:
    """The run that the state names, by its id or else by its key, unless someone deleted it."""
    from mlflow.exceptions import MlflowException

    run_id = state.get("run_id")
    if run_id is not None:
        try:
            run = server.client.get_run(run_id)
        except MlflowException as error:
            if error.error_code not in _MISSING:
                raise
        else:
            return run if run.info.lifecycle_stage == "active" else None
    experiment = server.client.get_experiment_by_name(state.get("experiment") or "")
    if experiment is None:
        return None
    condition = f"tags.{_KEY_TAG} = '{state.get('key')}'"
    found = server.client.search_runs([experiment.experiment_id], condition, max_results=1)
    return server.client.get_run(found[0].info.run_id) if found else None


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


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 1] + "…"


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
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
