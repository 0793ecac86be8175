"""Workers that share the tiled InfoNCE have, together, the loss and the gradients of one worker with all rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.distributed.teams import run_team
from tests.trainer.loss.infonce_member import losses, views_of
from trainer.distributed.team import Team


@pytest.fixture(scope="module", params=[2, 3])
def members(request, tmp_path_factory, repo_root) -> list[dict[str, np.ndarray]]:
    """What each worker found, by rank."""
    folder = tmp_path_factory.mktemp("team")
    run_team(Path(__file__).with_name("infonce_member.py"), request.param, folder, repo_root)
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(request.param)]


@pytest.mark.parametrize("name", ["grace", "weighted", "intra", "product"])
def test_shares_and_gradients_of_workers_are_those_of_one(members, name):
    rows = [views_of(rank) for rank in range(len(members))]
    alone = losses(*(torch.cat(parts) for parts in zip(*rows, strict=True)), Team.solo())[name]
    assert sum(float(found[name]) for found in members) == pytest.approx(alone.item(), rel=1e-12)
    alone.backward()
    for found, views in zip(members, rows, strict=True):
        for which, part in zip("uv", views, strict=True):
            if part.grad is not None:
                np.testing.assert_allclose(found[f"{name}_{which}"], part.grad.numpy(), rtol=1e-10, atol=1e-14)
