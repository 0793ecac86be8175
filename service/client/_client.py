"""The service from Python: submit, watch, look up.

with Client() as client:                       # NML_URL and NML_API_KEY say where, and who asks
    job = client.submit({"data": {"name": "digits"}})
    for event in client.events(job):
        print(event.type, event.data)
    client.vectors.wait(job)                   # published
    client.vectors.neighbors("latest", ids=[42], k=10)
"""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from service.client import _files, _sse
from service.client._documents import Dataset, Event, Job, Sweep, dataset_from, job_from
from service.client._embeddings import Embeddings
from service.client._errors import ApiError, JobFailed
from service.client._paths import pages, path_of, segment
from service.client._session import Notice, Session, polls
from trainer.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np

    from trainer.config import TrainSpec
    from tuner.config import SweepSpec

DEFAULT_URL = "http://127.0.0.1:8000"
_NONE: Mapping[str, str] = MappingProxyType({})
_Kind = TypeVar("_Kind", bound=Job)


class Client:
    """One service. May be shared by threads; closes its connections at the end of a `with`, or by `close`.

    Every method raises ApiError if the service refuses, and Unreachable if it does not answer. All requests are safe
    to repeat and are repeated for `patience` seconds while the service is busy or away: a job is never made twice.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout: float = 30.0,
        patience: float = 30.0,
        absence: float | None = None,
        notice: Notice | None = None,
        transport: httpx.BaseTransport | None = None,
    ):
        """
        Args:
            url: where the service is; none: NML_URL, else this machine's port 8000.
            key: from `nml keys create`; none: NML_API_KEY if that is set; "": no key.
            timeout: seconds to wait for a single answer.
            patience: seconds to go on trying while there is none.
            absence: of them, for a service that has not answered a call at all, even that it is busy; none: all.
            notice: told, in a sentence, when an attempt failed and others follow.
            transport: for httpx, in place of a connection.
        """
        url = url or os.environ.get("NML_URL") or DEFAULT_URL
        key = os.environ.get("NML_API_KEY") if key is None else key
        self._session = Session(
            url, key, timeout=timeout, patience=patience, absence=absence, notice=notice, transport=transport
        )
        self.vectors = Embeddings(self._session)  # published embeddings: lookup, neighbours, new nodes, files

    @property
    def url(self) -> str:
        """The service's address."""
        return self._session.url

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    # Submitting

    def submit(
        self,
        spec: Mapping[str, Any] | TrainSpec,
        *,
        name: str | None = None,
        priority: int = 0,
        deadline_minutes: float | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Job:
        """Queue a training job.

        Args:
            spec: a training spec; sections left out are those of its preset.
            name: what to call it in lists.
            priority: higher ones start first.
            deadline_minutes: from now; a job that has not ended then fails with kind "deadline".
            metadata: notes of your own, up to 20 short texts; `jobs` can be asked for those that have them.
            idempotency_key: calls with the same key and spec give the same job; none: each call makes one.
        """
        query = {"name": name, "priority": priority or None, "deadline_minutes": deadline_minutes}
        return job_from(Job, self._submit("v1/jobs", spec, query, metadata, idempotency_key))

    def submit_sweep(
        self,
        spec: Mapping[str, Any] | SweepSpec,
        *,
        name: str | None = None,
        priority: int = 0,
        deadline_minutes: float | None = None,
        metadata: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Sweep:
        """Queue a sweep; as `submit`, with a sweep spec.

        In a mapping without `space`, what `base` gives a value stays fixed; a SweepSpec is sent with its own space.
        """
        if not isinstance(spec, Mapping):
            spec = spec.model_copy(update={"space": spec.dimensions()})
        query = {"name": name, "priority": priority or None, "deadline_minutes": deadline_minutes}
        return job_from(Sweep, self._submit("v1/sweeps", spec, query, metadata, idempotency_key))

    def estimate(self, spec: Mapping[str, Any] | TrainSpec) -> dict[str, Any]:
        """What a training job would need, as `nml estimate` says it: `memory` part by part, `sampling`, `shape`, …

        Raises:
            ApiError: 422, the job would be refused; says why.
        """
        found: dict[str, Any] = self._send("POST", "v1/estimates", _document(spec))
        return found

    # Looking

    def job(self, job_id: str) -> Job:
        """One job as it is now; a Sweep if it is one."""
        path = path_of("v1/jobs", job_id)
        try:
            return _job_at(path, self._get(path))
        except ApiError as error:
            if error.status != httpx.codes.NOT_FOUND:
                raise
            try:
                return self.sweep(job_id)
            except ApiError:
                raise error from None  # "no such job" is what to say

    def jobs(
        self,
        *,
        state: str | None = None,
        dataset: str | None = None,
        name: str | None = None,
        metadata: Mapping[str, str] | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        limit: int | None = None,
    ) -> Iterator[Job]:
        """Training jobs, newest first, page by page; at most `limit`.

        Args:
            metadata: entries that they must have, all of them.
            created_from, created_before: with a time zone.
        """
        query: dict[str, Any] = {"state": state, "dataset": dataset, "name": name}
        times = {"created_from": created_from, "created_before": created_before}
        query |= {field: None if time is None else time.isoformat() for field, time in times.items()}
        query["metadata"] = [f"{key}={value}" for key, value in (metadata or {}).items()] or None
        return self._listed(Job, "v1/jobs", query, limit)

    def sweep(self, sweep_id: str) -> Sweep:
        """One sweep as it is now."""
        return job_from(Sweep, self._get(path_of("v1/sweeps", sweep_id)))

    def sweeps(self, *, state: str | None = None, limit: int | None = None) -> Iterator[Sweep]:
        """Sweeps, newest first; at most `limit`."""
        return self._listed(Sweep, "v1/sweeps", {"state": state}, limit)

    def trials(self, sweep_id: str) -> list[dict[str, Any]]:
        """One row per trial of a sweep, by number."""
        path, rows, after = path_of("v1/sweeps", sweep_id, "trials"), list[dict[str, Any]](), None
        while True:
            page = self._get(path, **({} if after is None else {"after": after}))
            rows += page["trials"]
            after = page["next"]
            if after is None:
                return rows

    def best(self, sweep_id: str) -> dict[str, Any]:
        """The training spec with a sweep's best settings, ready to submit."""
        found: dict[str, Any] = self._get(path_of("v1/sweeps", sweep_id, "best"))
        return found

    # Following

    def events(self, job: str | Job, *, after: int = 0) -> Iterator[Event]:
        """All that happens to a job or sweep, from event number `after` + 1 to its end; ends with the job.

        Every event comes once and in order, whether or not the connection breaks or the service restarts meanwhile.
        """
        return _sse.follow(self._session, f"{self._place(job)}/events", after)

    def wait(self, job: str | Job, timeout: float | None = None) -> Job:
        """The job once it has succeeded.

        Raises:
            JobFailed: it failed or was cancelled; says why.
            TimeoutError: it has not ended within `timeout` seconds. It goes on.
        """
        path = self._place(job)
        for _ in polls(timeout):
            found = self._at(path)
            if found.is_terminal:
                break
        else:
            raise TimeoutError(f"job {found.id} is still {found.state} after {timeout:g} s")
        if found.state != "succeeded":
            raise JobFailed(found.id, found.failure_kind or found.state, found.failure_message or found.state)
        return found

    def log(self, job: str | Job, *, tail: int | None = None) -> str:
        """What the job's process wrote; only the last `tail` lines if given."""
        query = {} if tail is None else {"tail": tail}
        headers = {"Accept": "text/plain, application/problem+json"}
        return self._session.request("GET", f"{self._place(job)}/log", params=query, headers=headers).text

    # Results

    def metrics(self, job: str | Job) -> dict[str, Any]:
        """Figures by epoch: {"epochs": [1, 2, …], "series": {"loss": […], …}}."""
        found: dict[str, Any] = self._get(f"{self._place(job)}/metrics")
        return found

    def figure(self, job: str | Job, name: str) -> bytes:
        """A picture of the run, by its name in the job's links."""
        path = f"{self._place(job)}/figures/{segment(name)}"
        return self._session.request("GET", path, headers={"Accept": "*/*"}).content

    def embeddings(self, job: str | Job, directory: str | Path | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Float32 vectors [N, dim] and the ids of their rows [N], compared with their checksums.

        Args:
            directory: keep the files there, and the vectors on disk (memory-mapped); none: all in memory.

        Raises:
            Infrastructure: what came is not what was exported.
        """
        path = f"{self._place(job)}/embeddings"
        if directory is not None:
            return _files.embeddings(self._session, path, Path(directory), mapped=True)
        with tempfile.TemporaryDirectory(prefix="nml-") as place:
            return _files.embeddings(self._session, path, Path(place), mapped=False)

    # Changing and ending

    def update(self, job: str | Job, **changes: Any) -> Job:
        """Change a job's or sweep's `name`, `priority` or `metadata`, whichever are given; the rest stays.

        Of metadata, entries that are given are set, and None removes one.
        """
        path = self._place(job)
        return _job_at(path, self._send("PATCH", path, changes))

    def cancel(self, job: str | Job) -> Job:
        """End a job that waits now, and a running one after it wrote a checkpoint. One already cancelled stays so."""
        path = self._place(job)
        try:
            return _job_at(path, self._session.document("POST", f"{path}/cancel"))
        except ApiError as error:
            if error.status == httpx.codes.CONFLICT and (found := self._at(path)).state == "cancelled":
                return found  # by us, where the answer to an earlier attempt was lost
            raise

    def delete(self, job: str | Job) -> None:
        """Remove a job that has ended, and its files."""
        self._session.delete(self._place(job))

    # Data sets

    def datasets(self) -> Iterator[Dataset]:
        """All graphs that a job can name: built in, public, and uploaded."""
        return map(dataset_from, pages(self._session, "v1/datasets", {}, None))

    def dataset(self, name: str) -> Dataset:
        """One graph by name (its newest version) or by reference."""
        return dataset_from(self._get(path_of("v1/datasets", name)))

    def push_dataset(
        self,
        name: str,
        *,
        nodes: str | Path | None = None,
        edges: str | Path | None = None,
        npz: str | Path | None = None,
        options: Mapping[str, Any] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Dataset:
        """Upload a graph of any size and wait until it is checked. The same content again is the same version.

        Args:
            nodes, edges: CSV or Parquet tables; or else npz: one file.
            options: how to read them, such as {"id_column": "key"} (fields of data.files).
            progress: told the bytes sent so far, and those to send in all.

        Raises:
            InvalidInput: a file cannot be read.
            JobFailed: it was found unusable, after it had been uploaded.
        """
        given = {"npz": npz, "nodes": nodes, "edges": edges}
        files = {field: Path(path) for field, path in given.items() if path is not None}
        if not files:
            raise InvalidInput("give one source: nodes and edges, or npz")
        fields = {"name": name} | ({"options": json.dumps(dict(options))} if options else {})
        answer = _files.upload(self._session, "v1/datasets", fields, files, progress)
        found = dataset_from(self._session.parsed(answer))
        for _ in polls():
            if found.state != "checking":
                break
            found = self.dataset(found.ref)
        if found.state == "failed":
            raise JobFailed(found.ref, "invalid", str(found.document.get("failure") or "it could not be imported"))
        return found

    def delete_dataset(self, ref: str) -> None:
        """Remove one version of an uploaded graph; refused while a job uses it."""
        self._session.delete(path_of("v1/datasets", ref))

    # Underneath

    def _get(self, path: str, **query: Any) -> Any:
        return self._session.document("GET", path, params=query)

    def _submit(self, path: str, spec: Any, query: Mapping[str, Any], metadata: Any, key: str | None) -> Any:
        document = _document(spec)
        if metadata is not None:
            document = {**document, "metadata": dict(metadata)}
        given = {name: value for name, value in query.items() if value is not None}
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self._send("POST", path, document, headers=headers, params=given)

    def _send(self, method: str, path: str, document: Any, *, headers: Mapping[str, str] = _NONE, **how: Any) -> Any:
        try:
            body = json.dumps(document, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"the spec cannot be written as JSON: {error}") from error
        headers = {"Content-Type": "application/json", **headers}
        return self._session.document(method, path, content=body, headers=headers, **how)

    def _listed(self, kind: type[_Kind], path: str, query: Mapping[str, Any], limit: int | None) -> Iterator[_Kind]:
        return (job_from(kind, document) for document in pages(self._session, path, query, limit))

    def _place(self, job: str | Job) -> str:
        """Where a job or sweep is to be found. An id alone does not tell which it is, so the service is asked."""
        found = job if isinstance(job, Job) else self.job(job)
        return path_of("v1/sweeps" if isinstance(found, Sweep) else "v1/jobs", found.id)

    def _at(self, path: str) -> Job:
        return _job_at(path, self._get(path))


def _document(spec: Any) -> Any:
    return spec.model_dump(mode="json") if hasattr(spec, "model_dump") else spec


def _job_at(path: str, document: Mapping[str, Any]) -> Job:
    return job_from(Sweep if path.startswith("v1/sweeps") else Job, document)
