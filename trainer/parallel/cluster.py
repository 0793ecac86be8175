"""The Ray cluster that a child process (trainer.parallel.child) works on: one it was named, or one of its own."""

from __future__ import annotations

import os
import shutil
import threading
import time
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from trainer.errors import Infrastructure, InvalidInput
from trainer.files.atomic import write_json
from trainer.parallel.connection import LOCAL

# Ray gives the processes of a node 30 s to come up, whatever its settings say: too little for a cold disk or a busy
# machine. What it says then:
_TOO_SLOW = ("timed out during startup", "Timed out")
GRACE_SECONDS = 10.0  # for the processes of a cluster of ours that has ended
OBJECT_STORE_BYTES = 100 * 2**20  # nothing of ours goes through it; Ray would take 30 % of the memory


@contextmanager
def connected(job: Mapping[str, Any], room: Path) -> Iterator[None]:
    """Connect to job["address"], or start a cluster on loopback and end it again; job["init"] goes to ray.init."""
    import ray

    options = {"log_to_driver": False, **job.get("init", {})}
    local = {
        "num_cpus": job["cpus"], "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES,
        "_temp_dir": job["temporary"],
    }  # fmt: skip
    address, before = job["address"], _family()
    try:
        try:
            with _within(job["start_seconds"], room, f"Ray at {address} does not answer"):
                if address == LOCAL:
                    _start(job["start_seconds"], **options, **local)
                else:
                    ray.init(address=address, **options)
        except Exception as error:  # of many types, and a refused token has none of its own
            traceback.print_exc()
            if "InvalidAuthToken" in (room / "ray.log").read_text(encoding="utf-8", errors="replace"):
                raise InvalidInput(
                    f"the Ray cluster at {address} refused the token (RAY_AUTH_MODE is "
                    f"{os.environ['RAY_AUTH_MODE']}). Set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's own."
                ) from error
            raise Infrastructure(f"cannot connect to Ray at {address}: {error}") from error
        yield
    finally:
        started = _family() - before  # workers, too: they are our raylet's
        ray.shutdown()
        _end(started, seconds=GRACE_SECONDS)  # one that was stopped hears nobody, and would stay for good
        shutil.rmtree(job["temporary"], ignore_errors=True)


def _start(seconds: float, **options: Any) -> None:
    """Start a cluster here, again and again for so many seconds if it is only slow; raises what ray.init raises."""
    import ray

    deadline, before = time.monotonic() + seconds, _family()
    while True:
        try:
            ray.init(address=LOCAL, **options)
            return
        except Exception as error:
            if not any(words in str(error) for words in _TOO_SLOW) or time.monotonic() >= deadline:
                raise
            traceback.print_exc()  # into ray.log
        ray.shutdown()  # knows nothing of the processes of a node that never came up
        _end(_family() - before, seconds=0)


def _family() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _end(processes: Collection[psutil.Process], *, seconds: float) -> None:
    """Give them so long to end by themselves, then kill what is left."""
    _, left = psutil.wait_procs(processes, timeout=seconds)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=10)


@contextmanager
def _within(seconds: float, room: Path, complaint: str) -> Iterator[None]:
    """End this process, with a complaint, unless the block ends in time: Ray itself tries for many minutes."""

    def give_up() -> None:
        message = f"{complaint} within {seconds:g} s. Check RAY_ADDRESS, or try again later."
        write_json(room / "outcome.json", {"error": "Infrastructure", "message": message})
        os._exit(1)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
