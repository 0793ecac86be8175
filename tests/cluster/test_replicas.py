"""Two API processes behind one socket: one of them killed under load costs what it had in hand, and nothing else."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.cluster.runtime.cluster import Cluster, wait_for
from tests.cluster.runtime.container import Process
from tests.cluster.runtime.network import inside

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
THREADS = 6
ROUNDS = 10
PAUSE_SECONDS = 0.012  # a key may ask a hundred times a second


@dataclass
class Caller:
    """One client that asks again as soon as it is answered; no retries of its own."""

    cluster: Cluster
    key: str
    done: threading.Event
    answered: int = 0
    failed: list[tuple[float, float, str]] = field(default_factory=list)  # begun, ended, why

    def run(self) -> None:
        headers = {"Authorization": f"Bearer {self.key}"}
        with inside(self.cluster.outsider), httpx.Client(headers=headers, timeout=30) as client:
            while not self.done.is_set():
                begun, why = time.monotonic(), None
                try:
                    answer = client.get(f"{self.cluster.url()}/v1/jobs?limit=5")
                    why = None if answer.status_code == 200 else f"{answer.status_code} {answer.text[:200]}"
                except httpx.HTTPError as error:
                    why = repr(error)
                if why is None:
                    self.answered += 1
                else:
                    self.failed.append((begun, time.monotonic(), why))
                self.done.wait(PAUSE_SECONDS)


def servers(cluster: Cluster) -> list[Process]:
    """The processes that answer, not the one that looks after them."""
    return [each for each in cluster["api"].processes().values() if "service.serve_api" in each.words]


def kill(process: Process) -> tuple[float, float]:
    """kill -9; from when to when it was dying.

    Its sockets close with its last thread, which takes some ten milliseconds more than its first to end; until then a
    kept connection looks alive, and what is sent there is in that process's hands.
    """
    begun = time.monotonic()
    os.kill(process.pid, signal.SIGKILL)
    while _threads(process.pid):
        time.sleep(0.001)
    return begun, time.monotonic()


def _threads(pid: int) -> int:
    """Of a process, those that have not ended; one that waits for its parent to look has none."""
    alive = 0
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            alive += task.read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
        except OSError:
            continue
    return alive


def new_key(cluster: Cluster, name: str) -> str:
    made = cluster["api"].execute(["nml", "keys", "create", name, "--scope=read"])
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def test_a_killed_replica_costs_only_what_it_had_in_hand(cluster: Cluster) -> None:
    wait_for(lambda: len(servers(cluster)) == 2, 60, "two API processes")
    done = threading.Event()
    callers = [Caller(cluster, new_key(cluster, f"caller {number}"), done) for number in range(THREADS)]
    threads = [threading.Thread(target=caller.run) for caller in callers]
    for thread in threads:
        thread.start()
    moments = []
    try:
        for _ in range(ROUNDS):
            before = sum(caller.answered for caller in callers)
            wait_for(lambda before=before: sum(each.answered for each in callers) > before + 100, 120, "answers")
            victim = servers(cluster)[0]
            moments.append(kill(victim))
            wait_for(
                lambda victim=victim: len([each for each in servers(cluster) if each.pid != victim.pid]) == 2,
                60, "the supervisor to start another",
            )  # fmt: skip
        before = sum(caller.answered for caller in callers)
        wait_for(lambda: sum(each.answered for each in callers) > before + 100, 120, "answers after the last kill")
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
    for caller in callers:
        for begun, ended, why in caller.failed:
            at = [moment for moment in moments if begun <= moment[1] and ended >= moment[0]]
            assert at, f"a request failed that was not in flight at a kill: {why}; {begun} to {ended}, kills {moments}"
        assert len(caller.failed) <= len(moments)
    assert sum(caller.answered for caller in callers) > 300
