"""`nml serve` as people start it: what it refuses, what it prints, and what runs on it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from service.client import ApiError, Client
from tests.service.cli.commands import nml, start_nml, users_of
from tests.trainer.tracking.mlflow_server import free_port


@contextmanager
def served(home: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running `nml serve` and what it printed until it told its home, which is last."""
    process = start_nml("serve", "--home", str(home), *options)
    assert process.stdout is not None
    try:
        printed = ""
        while not re.search(r"^home ", printed, re.MULTILINE):
            line = process.stdout.readline()
            assert line, (printed, process.communicate())
            printed += line
        yield process, printed
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)


@pytest.mark.parametrize(
    "options, environment, says",
    [
        ([], {"NML_PORT": "many"}, "NML_PORT"),
        (["--runner", "ray"], {}, "ray_jobs_url"),
        (["--memory-limit", "lots"], {}, "4GB"),
        (["--host", "198.51.100.7", "--port", "8000"], {"NML_REQUIRE_KEY": "false"}, "198.51.100.7"),
    ],
)
def test_settings_that_cannot_be_used_are_named(tmp_path: Path, monkeypatch, options, environment, says):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert says in nml("serve", "--home", str(tmp_path / "home"), *options, code=3).stderr


def test_a_port_in_use_is_refused_with_the_remedy(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        told = nml("serve", "--home", str(tmp_path / "home"), "--port", port, code=3)
    assert port in told.stderr
    assert "--port" in told.stderr
    assert told.stdout == ""


def test_beyond_loopback_a_missing_key_is_pointed_out_and_wanted(tmp_path: Path):
    home, port = tmp_path / "home", free_port()
    with served(home, "--host", "0.0.0.0", "--port", str(port), "--role", "api") as (process, printed):
        for address in (
            "/docs",
            "/readyz",
            f"console  http://127.0.0.1:{port}/",
            f"nml submit --dataset digits --watch --url http://127.0.0.1:{port}",
        ):
            assert address in printed
        url = f"http://127.0.0.1:{port}"
        with Client(url, key="") as client, pytest.raises(ApiError) as error:
            list(client.jobs())
        assert error.value.status == 401
        key = nml("keys", "create", "ada", "--home", str(home)).stdout.strip()
        with Client(url, key) as client:
            assert list(client.jobs()) == []
        process.send_signal(signal.SIGTERM)
        told = process.communicate(timeout=120)[1]
        assert process.returncode == 0
    assert "nml keys create NAME" in told
    assert users_of(home) == []
    with served(home, "--host", "0.0.0.0", "--port", str(port), "--role", "api") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert "nml keys create" not in process.communicate(timeout=120)[1]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_graph_is_pushed_trained_on_and_fetched(tmp_path: Path, monkeypatch):
    rng = np.random.default_rng(0)
    names = [f"p-{number}" for number in range(60)]
    rows = "\n".join(f"{name},{i % 3},{rng.normal():.3f},{rng.normal():.3f}" for i, name in enumerate(names))
    (tmp_path / "nodes.csv").write_text(f"key,label,a,b\n{rows}\n")
    links = "\n".join(f"{one},{names[(i + 3) % 60]}" for i, one in enumerate(names))
    (tmp_path / "edges.csv").write_text(f"source,target\n{links}\n")
    files = ["--nodes", str(tmp_path / "nodes.csv"), "--edges", str(tmp_path / "edges.csv")]
    home, port = tmp_path / "home", free_port()
    monkeypatch.setenv("NML_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with served(home, "--port", str(port), "--concurrency", "1") as (process, _):
        assert "key" in nml("datasets", "push", "papers", *files, code=3).stderr  # there is no column "id"
        pushed = nml("datasets", "push", "papers", *files, "--set", "data.files.id_column=key").stdout
        ref = re.search(r"papers\.[0-9a-f]{12}", pushed)
        assert ref is not None
        again = nml("datasets", "push", "papers", *files, "--set", "data.files.id_column=key", "--json").stdout
        assert ref[0] in again
        tiny = [
            "encoder.hidden=8",
            "encoder.dim=8",
            "method.metric.hidden=8",
            "optimiser.epochs=2",
            "evaluation.figures=false",
        ]
        options = [part for change in tiny for part in ("--set", change)]
        done = nml("submit", "--dataset", "papers", *options, "--watch")
        job_id = done.stdout.split()[0]
        assert "epoch 2/2" in done.stderr
        for words in ("succeeded", ref[0], "probe accuracy, test", "MLflow run"):
            assert words in done.stdout
        assert "60 nodes, 120 edges" in nml("logs", job_id).stdout
        with Client() as client:
            vectors, ids = client.embeddings(job_id)
            assert ids.tolist() == names
            assert vectors.shape == (60, 8)
            with pytest.raises(ApiError):
                client.delete_dataset("papers")
            client.delete_dataset(ref[0])
            assert ref[0] not in {found.ref for found in client.datasets()}
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    assert users_of(home) == []
