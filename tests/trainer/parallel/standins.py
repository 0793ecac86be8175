"""Stand-ins for the training loop, by the name under which a worker imports them. Each keeps the loop's promises:

rank 0 writes events and checkpoints, resumes from the newest, and looks for a request to stop after each epoch.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from trainer.config import TrainSpec
from trainer.distributed.team import Team
from trainer.errors import Cancelled, NonFinite
from trainer.run.directory import RunDirectory
from trainer.run.stop_file import stop_requested


def _epochs(spec: TrainSpec, run_dir: Path, team: Team) -> Iterator[int]:
    """Epochs that are left, recorded by rank 0 when done, with a checkpoint after each."""
    checkpoint = run_dir / "checkpoint"
    done = int(checkpoint.read_text()) if checkpoint.exists() else 0
    team.barrier()
    _record(run_dir, team, type="resume" if done else "start", epoch=done, pid=os.getpid())
    for epoch in range(done + 1, spec.optimiser.epochs + 1):
        yield epoch
        time.sleep(0.1)
        everyone = team.total(torch.tensor(team.rank + 1))
        _record(
            run_dir,
            team,
            type="epoch",
            epoch=epoch,
            sum=int(everyone),
            threads=torch.get_num_threads(),
            cwd=os.getcwd(),
        )
        if team.rank == 0:
            checkpoint.write_text(str(epoch))
        stop = stop_requested(run_dir) if team.rank == 0 else None
        if team.any(stop == "cancel"):
            raise Cancelled(f"stopped on request after epoch {epoch}")
        if team.any(stop == "finish"):
            break
    if team.rank == 0:
        (run_dir / "metrics.json").write_text("{}")


def _record(run_dir: Path, team: Team, **event: object) -> None:
    if team.rank == 0:
        with (run_dir / "events.jsonl").open("a") as file:
            file.write(json.dumps(event | {"time": time.time()}) + "\n")


def held_after_three(spec: TrainSpec, run_dir: Path, team: Team) -> None:
    """The training loop itself, which waits after its third epoch until there is a file beside the run directory."""
    from trainer.loop import train_in_team

    record = RunDirectory.record

    def held(run: RunDirectory, kind: str, **fields: Any) -> dict[str, Any]:
        event = record(run, kind, **fields)
        while kind == "epoch" and event["epoch"] == 3 and not run_dir.with_suffix(".let-go").exists():
            time.sleep(0.05)
        return event

    RunDirectory.record = held  # type: ignore[method-assign]
    train_in_team(spec, run_dir, team)


def train(spec: TrainSpec, run_dir: Path, team: Team) -> None:
    for _ in _epochs(spec, run_dir, team):
        pass


def killed_once(spec: TrainSpec, run_dir: Path, team: Team) -> None:
    """Worker 1 is killed in the middle of epoch 3, the first time."""
    for epoch in _epochs(spec, run_dir, team):
        if epoch == 3 and team.rank == 1 and not (run_dir / "was-killed").exists():
            (run_dir / "was-killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def killed_always(spec: TrainSpec, run_dir: Path, team: Team) -> None:
    with (run_dir / "attempts").open("a") as file:
        file.write(f"{team.rank}\n")
    if team.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    team.barrier()


def diverging(spec: TrainSpec, run_dir: Path, team: Team) -> None:
    """Worker 1 fails alone, while worker 0 waits for it."""
    with (run_dir / "attempts").open("a") as file:
        file.write(f"{team.rank}\n")
    if team.rank == 1:
        raise NonFinite("the loss of epoch 1 is nan. Lower optimiser.lr.")
    team.barrier()
