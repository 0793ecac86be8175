"""A new user's five minutes: the README's own commands and snippets, word for word, from an empty directory."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.contract.markdown import Page

PAGE = Page(Path(__file__).resolve().parents[2] / "README.md")


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """An empty directory that has `.venv`, as a checkout would."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The user's shell, with a home and a port that nobody else has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    return {
        **os.environ, "NML_HOME": str(tmp_path / "home"), "NML_PORT": port, "NML_URL": f"http://127.0.0.1:{port}",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip


@pytest.fixture
def service(desk: Path, environment: dict[str, str]) -> Iterator[None]:
    """What the README has you start in the first terminal."""
    (block,) = [each for each in PAGE.blocks("sh") if "nml serve" in each.text]
    process = subprocess.Popen(["bash", "-ec", block.text], cwd=desk, env=environment, start_new_session=True)
    try:
        end = time.monotonic() + 120
        while not _answers(environment["NML_URL"]):
            assert process.poll() is None, "nml serve ended"
            assert time.monotonic() < end, "nml serve did not answer within two minutes"
            time.sleep(0.2)
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_from_two_tables_to_neighbours_by_their_own_ids(desk: Path, environment: dict[str, str], service: None):
    tables, client, notebook = (block.text for block in PAGE.blocks("python"))
    _, _, lookups, alone = (block.text for block in PAGE.blocks("sh"))
    run(["python", "-c", tables], desk, environment)
    said = run(["bash", "-ec", lookups], desk, environment)
    assert said.count("p-000") >= 5  # the node asked about, in each row of its neighbours
    assert (desk / "embeddings.parquet").stat().st_size > 0
    assert "(2, 512)" in run(["python", "-c", client], desk, environment)
    run(["bash", "-ec", f"source .venv/bin/activate\n{alone.strip()} --epochs 2"], desk, environment)
    assert (desk / "runs" / "papers" / "embeddings" / "vectors.npy").is_file()
    assert run(["python", "-c", notebook], desk, environment).count("p-") >= 5


def run(words: list[str], desk: Path, environment: dict[str, str]) -> str:
    program = [sys.executable, *words[1:]] if words[0] == "python" else words
    done = subprocess.run(program, cwd=desk, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
