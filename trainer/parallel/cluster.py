"""The Ray cluster that a child process (trainer.parallel.child) works on: one it was named, or one of its own."""

from __future__ import annotations

import os
import shutil
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.errors import Infrastructure, InvalidInput
from trainer.parallel.connection import LOCAL
from trainer.run.atomic import write_json

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
    address = job["address"]
    try:
        try:
            with _within(job["start_seconds"], room, f"Ray at {address} does not answer"):
                ray.init(address=address, **options, **(local if address == LOCAL else {}))
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
        ray.shutdown()
        shutil.rmtree(job["temporary"], ignore_errors=True)


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
