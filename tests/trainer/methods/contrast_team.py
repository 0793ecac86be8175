"""One worker of a team that trains GRACE and those that weigh its negatives; writes down the losses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.trainer.distributed.teams import leave
from tests.trainer.methods.contrast import learner_of, planted, train
from trainer.distributed.team import Team

METHODS: dict[str, dict[str, Any]] = {
    "grace": {"name": "grace", "projection": 10},
    "progcl": {"name": "progcl", "projection": 10, "start_epoch": 2},
    "grace-plus": {"name": "grace-plus", "projection": 10},
    "phases": {"name": "phases", "projection": 10, "masked": 20},
}
SCOPES = {"batch": [4, 4], "graph": [-1, -1]}


def losses(name: str, scope: str, batch_size: int, team: Team) -> list[float]:
    """Of 4 epochs; 151 nodes, so that batches and shares are ragged."""
    sampling = {"negatives": scope, "batch_size": batch_size, "num_neighbors": SCOPES[scope]}
    learner = learner_of(
        planted(151), METHODS[name], team, sampling=sampling, run={"workers": team.size}, optimiser={"epochs": 4}
    )
    return train(learner, range(1, 5))


if __name__ == "__main__":
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    found = {
        f"{name} {scope}": losses(name, scope, 40 // size, Team.of_process_group())
        for name in METHODS
        for scope in SCOPES
    }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    leave()
