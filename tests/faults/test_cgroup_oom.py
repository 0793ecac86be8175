"""The kernel ends a trainer or importer that exceeds the memory of its control group: `oom`; the service goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.client import ApiError, JobFailed
from tests.faults.histories import small_spec
from tests.faults.services import Service, wait_for
from tests.service.datasets.forms import EDGES, NODES

ROOT = Path("/sys/fs/cgroup")
SPEC = small_spec(epochs=5, run={"track": False})
TOO_LITTLE, ENOUGH = 60 << 20, 4 << 30  # bytes: torch alone needs more than the first


class Group:
    """A control group of its own, of either version."""

    def __init__(self, path: Path, limit: str) -> None:
        self.path, self._limit = path, limit

    def limit(self, size: int) -> None:
        (self.path / self._limit).write_text(str(size))

    def add(self, process: int) -> None:
        (self.path / "cgroup.procs").write_text(str(process))

    def is_empty(self) -> bool:
        return not (self.path / "cgroup.procs").read_text().split()


@contextmanager
def group() -> Iterator[Group]:
    """Raises OSError where none can be made."""
    parent, limit = (ROOT / "memory", "memory.limit_in_bytes") if (ROOT / "memory").is_dir() else (ROOT, "memory.max")
    made = Group(parent / f"nml-test-{os.getpid()}", limit)
    made.path.mkdir()
    try:
        made.limit(ENOUGH)
        yield made
    finally:
        made.path.rmdir()


def may_limit() -> bool:
    try:
        with group():
            return True
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not may_limit(), reason="no control group for memory can be made here")
def test_what_exceeds_its_group_is_out_of_memory_and_the_service_goes_on(tmp_path):
    service = Service(tmp_path / "home", oom_retries=1, upload_wait_seconds=120, memory_limit="4GB")
    with group() as limited:
        try:
            service.start()
            service.wait_until_ready()
            (dispatcher,) = service.parts("service.dispatch")
            limited.add(dispatcher.pid)  # and what it starts from now on; what it has already is not counted
            limited.limit(TOO_LITTLE)
            (tmp_path / "n.csv").write_text(NODES)
            (tmp_path / "e.csv").write_text(EDGES)
            with service.client(patience=5) as client:
                job = client.submit(SPEC)
                with pytest.raises(JobFailed) as failed:
                    client.wait(job, timeout=180)
                assert failed.value.kind == "oom"
                assert "the kernel killed the process" in failed.value.message
                assert client.job(job.id).document["retries"]["oom"] == 1
                with pytest.raises(ApiError, match="memory"):
                    client.push_dataset("mine", nodes=tmp_path / "n.csv", edges=tmp_path / "e.csv")
                assert dispatcher.is_running()
                limited.limit(ENOUGH)
                assert client.wait(client.submit(SPEC), timeout=180).state == "succeeded"
                pushed = client.push_dataset("mine", nodes=tmp_path / "n.csv", edges=tmp_path / "e.csv")
                assert pushed.state == "ready"
            assert [process.pid for process in service.parts("service.dispatch")] == [dispatcher.pid]
        finally:
            limited.limit(ENOUGH)
            service.end()
            wait_for(limited.is_empty, 30)
