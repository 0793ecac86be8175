"""k workers with batches of B are one worker with batches of kB: the same losses, step for step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trainer.distributed.teams import run_team
from tests.trainer.methods.team_member import SCOPES, losses
from trainer.distributed.team import Team


@pytest.fixture(scope="module")
def found(tmp_path_factory, repo_root):
    folder = tmp_path_factory.mktemp("team")
    run_team(Path(__file__).with_name("team_member.py"), 2, folder, repo_root)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("scope", SCOPES)
def test_two_workers_have_the_losses_of_one_with_the_doubled_batch(found, scope):
    alone = losses(scope, 40, Team.solo())
    for worker in found:
        for mine, theirs in zip(worker[scope], alone, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-9)
