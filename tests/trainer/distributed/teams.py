"""Start the workers of a team as processes of their own, and wait for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SECONDS = 240  # far more than a healthy team needs; a worker that waits for ever must not


def leave() -> None:
    """End this worker, whose results are written, once the others have come as far.

    At once: an interpreter that shuts down beside gloo's threads aborts now and then ("terminate called without an
    active exception").
    """
    import torch.distributed as dist

    dist.barrier()
    os._exit(0)


def run_team(script: Path, size: int, folder: Path, root: Path) -> None:
    """`script RANK SIZE FOLDER` for each rank, in the project's root; fails with what a failed worker said."""
    commands = [[sys.executable, str(script), str(rank), str(size), str(folder)] for rank in range(size)]
    environment = os.environ | {"PYTHONPATH": str(root)}  # scripts import their neighbours as tests.…
    processes = [
        subprocess.Popen(command, cwd=root, env=environment, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    try:
        for process in processes:
            _, complaint = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, complaint
    finally:
        for process in processes:
            process.kill()
            process.wait()
