"""k workers with batches of B are one worker with batches of kB: the same losses, step for step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.methods.team_member import SCOPES, losses
from trainer.parallel.team import Team

SECONDS = 240  # a team that waits for ever must not keep the tests waiting


@pytest.fixture(scope="module")
def found(tmp_path_factory, repo_root):
    folder = tmp_path_factory.mktemp("team")
    module = Path(__file__).with_name("team_member.py")
    processes = [
        subprocess.Popen(
            [sys.executable, str(module), str(rank), "2", str(folder)], cwd=repo_root, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, complaint = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, complaint
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("scope", SCOPES)
def test_two_workers_have_the_losses_of_one_with_the_doubled_batch(found, scope):
    alone = losses(scope, 40, Team.solo())
    for worker in found:
        for mine, theirs in zip(worker[scope], alone, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-9)
