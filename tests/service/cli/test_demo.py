"""`nml demo` starts a whole service and leaves nothing behind, however it ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.service.cli.commands import nml, start_nml, users_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]


@contextmanager
def started(tmp_path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The demo, with keys and addresses of another service in its environment, which are no concern of it."""
    process = start_nml(
        "demo", *options, TMPDIR=str(tmp_path), OMP_NUM_THREADS="1", NML_URL="http://127.0.0.1:9",
        NML_API_KEY="nml_of_another", NML_REQUIRE_KEY="true", MLFLOW_TRACKING_URI="http://127.0.0.1:9",
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:  # the test failed; the next one wants the machine
            process.terminate()
            process.communicate(timeout=120)


def read_until_it_trains(process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if re.match(r"epoch \d+/40", line):
            return
    raise AssertionError("it never trained")


def assert_nothing_left(tmp_path: Path) -> None:
    assert users_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_demo_trains_through_the_service_and_shows_neighbours(tmp_path: Path):
    with started(tmp_path) as process:
        out, told = process.communicate(timeout=1_000)
    assert process.returncode == 0, told
    assert "epoch 40/40" in told
    assert re.search(r"probe accuracy, test +9\d\.\d\d %", out)
    assert re.search(r"MLflow run [0-9a-f]{32}", out)
    assert re.search(r"version [0-9a-hjkmnp-tv-z]{26}, 1,797 × \d+\.", out)
    assert re.search(r"curl http://127\.0\.0\.1:\d+/v1/embeddings/latest/nodes/42\b", out)
    rows = re.findall(r"^ (7|42|1000|1500) +(\d) +(.+?), [01]\.\d{3} ", out, re.MULTILINE)
    assert [node for node, _, _ in rows] == ["7", "42", "1000", "1500"]
    same = sum(found.count(f"({digit})") for _, digit, found in rows)
    assert same >= 28  # of 32 neighbours: by chance it would be 3
    assert_nothing_left(tmp_path)


def test_kept_demo_shows_its_map_until_it_is_interrupted(tmp_path: Path):
    with started(tmp_path, "--keep") as process:
        assert process.stdout is not None
        address = next(found[1] for line in process.stdout if (found := re.search(r"map: (http://\S+)", line)))
        assert httpx.get(address, trust_env=False).status_code == 200
        latest = httpx.URL(address).join("/v1/embeddings/latest")
        assert httpx.get(latest, trust_env=False).json()["rows"] == 1_797
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=200)[1]
    assert process.returncode == 0, told
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_stops_everything(tmp_path: Path, number):
    with started(tmp_path) as process:
        read_until_it_trains(process)
        assert len(users_of(tmp_path)) >= 5  # supervisor, API, dispatcher, shim, trainer
        process.send_signal(number)
        told = process.communicate(timeout=200)[1]
    assert process.returncode == 130
    assert "Interrupted" in told
    assert_nothing_left(tmp_path)


def test_demo_whose_service_dies_says_so_and_ends_the_rest(tmp_path: Path):
    with started(tmp_path) as process:
        read_until_it_trains(process)
        (service,) = [user for user in users_of(tmp_path) if user.ppid() == process.pid]
        service.kill()
        told = process.communicate(timeout=300)[1]
    assert process.returncode == 5
    assert "does not answer" in told
    assert_nothing_left(tmp_path)


def test_a_service_that_cannot_start_is_explained(tmp_path: Path, monkeypatch):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no luck\nexit 7\n")
    broken.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(broken))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    told = nml("demo", code=5).stderr
    assert "no luck" in told
    assert "ended with code 7 before it was ready" in told
    assert list(tmp_path.iterdir()) == [broken]
