"""A Ray of our own is given the time that we say, not the half minute that Ray has in mind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from trainer.parallel.connection import LOCAL, python_path, ray_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Raylets that do not show themselves in time, as many as are asked for; of Ray's 30 s none has to be waited for.
SLOW = """
import json, sys, time
from pathlib import Path
from types import SimpleNamespace
import psutil, ray
from ray._private import node, services
from trainer.parallel.cluster import connected

failures, really, raylets = int(sys.argv[2]), services.get_node, {}

def get_node(address, name):
    if name not in raylets:
        raylets[name] = sum(child.name() == "raylet" for child in psutil.Process().children())
    if len(raylets) > failures:
        return really(address, name)
    node.time = SimpleNamespace(sleep=time.sleep, monotonic=lambda: time.monotonic() + 31)
    raise RuntimeError("no such node yet")

services.get_node = get_node
room = Path(sys.argv[1])
job = {"address": "local", "cpus": 1, "start_seconds": float(sys.argv[3]), "temporary": str(room / "ray")}
with connected(job, room):
    print(json.dumps([ray.cluster_resources()["CPU"], list(raylets.values())]))
"""


def start(room: Path, failures: int, seconds: float) -> subprocess.CompletedProcess[str]:
    (room / "ray.log").touch()
    environment = ray_environment(os.environ, LOCAL) | python_path(os.environ)
    command = [sys.executable, "-c", SLOW, str(room), str(failures), str(seconds)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.fixture
def room() -> Iterator[Path]:
    with TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as short:  # pytest's paths are too long for sockets
        yield Path(short)


def test_a_ray_that_was_too_slow_twice_is_started_again_and_nothing_is_left_of_the_others(room):
    done = start(room, failures=2, seconds=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [1.0, [1, 1, 1]]


def test_when_our_time_is_over_a_slow_ray_is_a_failure(room):
    done = start(room, failures=1_000, seconds=0.01)
    assert done.returncode != 0
    assert "does not answer within 0.01 s" in (room / "outcome.json").read_text()
