"""One worker of tests/trainer/methods/test_team.py: trains a few epochs of each scope and writes down the losses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

from tests.trainer.distributed.teams import leave
from tests.trainer.methods.epochs import train_epoch
from trainer.config import parse_spec
from trainer.data.datasets import load
from trainer.distributed.team import Team
from trainer.learning.learner import Learner
from trainer.spec.data import DataSpec, SyntheticSpec

SCOPES = ("batch", "bank", "graph")
EPOCHS = 4


def document(scope: str, batch_size: int) -> dict:
    return {
        "encoder": {"hidden": 12, "dim": 8}, "run": {"dtype": "float64"},
        "method": {"inner_steps": 2, "detach_metric": False, "metric": {"hidden": 8}}, "optimiser": {"lr": 0.002},
        "sampling": {"negatives": scope, "batch_size": batch_size, "num_neighbors": [4, 4]},
    }  # fmt: skip


def losses(scope: str, batch_size: int, team: Team) -> list[dict[str, float]]:
    # 151 nodes: batches and shares are ragged
    graph = load(DataSpec(name="synthetic", synthetic=SyntheticSpec(nodes=151, classes=3, features=12)))
    learner = Learner(parse_spec(document(scope, batch_size)), graph, team=team)
    return [train_epoch(learner, epoch) for epoch in range(1, EPOCHS + 1)]


if __name__ == "__main__":
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    found = {scope: losses(scope, 40 // size, Team.of_process_group()) for scope in SCOPES}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    leave()
