"""The file system of the home becomes read-only, or full, for a while: the service says so, and goes on afterwards."""

from __future__ import annotations

import subprocess

import httpx
import pytest

from tests.faults.histories import small_spec
from tests.faults.services import Service, wait_for
from tests.faults.test_outages import fill, may_mount, small_disk
from trainer.errors import Infrastructure

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not may_mount(), reason="needs the right to mount a small file system"),
]
SPEC = small_spec(epochs=5, run={"track": False})


def says(service: Service, *words: str) -> None:
    """Not ready, for that reason; submitting is refused with 503 and a reason, reading may go on, the API lives."""
    ready = wait_for(lambda: (found := get(service, "/readyz")).status_code == 503 and found, 60, service.last_words)
    refused = httpx.post(f"{service.url}/v1/jobs", json=SPEC, timeout=60)
    assert refused.status_code in (503, 507), refused.text
    assert refused.headers["content-type"] == "application/problem+json"
    assert any(word in reason for word in words for reason in ready.json()["reasons"]), ready.text
    assert get(service, "/livez").status_code == 200


def get(service: Service, path: str) -> httpx.Response:
    return httpx.get(service.url + path, timeout=60)


def works(service: Service) -> None:
    service.wait_until_ready()
    with service.client() as client:
        assert client.wait(client.submit(SPEC), timeout=180).state == "succeeded"


def pids(service: Service) -> set[int]:
    return {process.pid for module in ("service.dispatch", "service.serve_api") for process in service.parts(module)}


def test_a_home_that_is_read_only_is_said_once_and_the_service_starts_when_it_is_writable_again(tmp_path):
    home = tmp_path / "home"
    service = Service(home)
    service.log = tmp_path / "serve.txt"
    with small_disk(home, 200_000):
        try:
            service.start()
            works(service)
            assert service.stop() == 0
            subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True)
            service.log.unlink()
            service.start()
            assert service.process is not None
            assert service.process.wait(60) == Infrastructure.exit_code
            assert "cannot write to the home" in service.last_words()
            assert "Read-only file system" in service.last_words()
            assert "Traceback" not in service.last_words()
            subprocess.run(["mount", "-o", "remount,rw", str(home)], check=True)
            service.start()
            works(service)
        finally:
            subprocess.run(["mount", "-o", "remount,rw", str(home)], check=False)
            service.end()


def test_a_home_that_is_full_for_a_while(tmp_path):
    home = tmp_path / "home"
    service = Service(home)
    service.log = tmp_path / "serve.txt"
    with small_disk(home, 60_000):
        try:
            service.start()
            works(service)
            before = pids(service)
            fill(home / "filler", leaving=0)
            says(service, "no dispatcher", "disk", "full")
            assert get(service, "/v1/jobs").status_code == 200
            (home / "filler").unlink()
            works(service)
            assert pids(service) == before
        finally:
            (home / "filler").unlink(missing_ok=True)
            service.end()
