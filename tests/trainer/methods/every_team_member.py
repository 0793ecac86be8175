"""One worker of test_every_method.py: it trains each method that knows teams and writes down the losses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

from tests.trainer.distributed.teams import leave
from tests.trainer.methods.small_runs import small_graph, small_spec, train_epochs
from trainer.distributed.team import Team
from trainer.learning.learner import Learner
from trainer.methods import METHODS

NAMES = [str(method.model_fields["name"].default) for method in METHODS if method.teams]


def losses(name: str, batch_size: int, team: Team) -> list[float]:
    """Of every step; without BatchNorm, which a team cannot have."""
    sampling = {"negatives": "batch", "batch_size": batch_size, "num_neighbors": [4, 4], "tile": 32, "keep_mb": 0}
    document = {"sampling": sampling, "encoder": {"norm": "none", "layers": 2}}
    learner = Learner(small_spec(name, document), small_graph(), team=team)
    return [figures["loss"] for figures in train_epochs(learner, 1, 3)]


if __name__ == "__main__":
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    found = {name: losses(name, 40 // size, Team.of_process_group()) for name in NAMES}
    (folder / f"{rank}.json").write_text(json.dumps(found))
    leave()
