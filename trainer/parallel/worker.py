"""What one worker of a parallel run does: join the others, make sure that no earlier rank 0 still writes, train."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from trainer.config import TrainSpec, parse_spec
from trainer.distributed.team import Team
from trainer.errors import Infrastructure, InvalidInput

Train = Callable[[TrainSpec, Path, Team], None]
LOCK_SECONDS = 120.0


def run_worker(job: Mapping[str, Any]) -> None:
    """Train `job["spec"]` in `job["run_dir"]`; torch.distributed is initialised already.

    Raises:
        TrainerError: from the training function, or Infrastructure if the run directory stays taken.
    """
    if Path(job["cwd"]).is_dir():
        os.chdir(job["cwd"])
    run_dir, team = Path(job["run_dir"]), Team.of_process_group()
    if not run_dir.is_dir():
        raise InvalidInput(f"{run_dir}: worker {team.rank} does not see it. Put runs where all nodes can reach them.")
    train = named(job["train"])
    with _only_writer(run_dir, team):
        team.barrier()  # nobody reads a checkpoint before rank 0 is alone
        if team.rank == 0:
            Path(job["started"]).touch()
        train(parse_spec(job["spec"]), run_dir, team)


def named(name: str) -> Train:
    """The function that `package.module:function` names."""
    module, _, function = name.partition(":")
    train: Train = getattr(import_module(module), function)
    return train


@contextmanager
def _only_writer(run_dir: Path, team: Team) -> Iterator[None]:
    """Let rank 0 hold a lock that the kernel frees when its process dies, and wait for a former rank 0 to be gone."""
    if team.rank > 0:
        yield
        return
    with (run_dir / ".writer.lock").open("w") as lock:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _locked(lock.fileno()):
            if time.monotonic() > deadline:
                raise Infrastructure(
                    f"{run_dir}: workers of an earlier attempt still write there after {LOCK_SECONDS:.0f} s. "
                    "End them, then go on with --resume."
                )
            time.sleep(0.1)
        yield


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
