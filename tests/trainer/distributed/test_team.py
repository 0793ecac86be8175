"""Workers in processes of their own get what one process would compute with everyone's data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.distributed.member import loss_of, rows_of
from tests.trainer.distributed.teams import run_team
from trainer.distributed.team import Team


@pytest.fixture(scope="module", params=[2, 3])
def members(request, tmp_path_factory, repo_root) -> list[dict[str, np.ndarray]]:
    """What each of 2 or 3 workers found, by rank."""
    size, folder = request.param, tmp_path_factory.mktemp("team")
    run_team(Path(__file__).with_name("member.py"), size, folder, repo_root)
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(size)]


@pytest.mark.slow
def test_team_of_a_process_group_knows_its_place(members):
    assert [list(found["place"]) for found in members] == [[rank, len(members)] for rank in range(len(members))]


def test_gather_equals_concatenation_with_uneven_rows(members):
    expected = torch.cat([rows_of(rank) for rank in range(len(members))]).numpy()
    for found in members:
        np.testing.assert_array_equal(found["gathered"], expected)


def test_gather_takes_a_worker_without_rows(members):
    expected = [[rank] for rank in range(1, len(members)) for _ in range(2)]
    for found in members:
        np.testing.assert_array_equal(found["some_empty"], expected)


def test_gradient_through_gather_is_that_of_the_sum_of_all_losses(members):
    parts = [rows_of(rank).requires_grad_() for rank in range(len(members))]
    together = torch.cat(parts)
    sum((loss_of(rank, together) for rank in range(len(members))), torch.zeros(())).backward()
    for found, part in zip(members, parts, strict=True):
        np.testing.assert_allclose(found["gradient"], part.grad.numpy(), rtol=1e-12, atol=1e-14)


def test_gradients_are_summed_and_none_stays_none(members):
    size = len(members)
    for found in members:
        np.testing.assert_array_equal(found["everywhere"], np.full((2, 3), size * (size + 1) / 2))
        np.testing.assert_array_equal(found["only_last"], np.full((2, 3), 7.0))
        np.testing.assert_allclose(found["double"], np.full((2, 3), 1e-12 * size * (size + 1) / 2), rtol=1e-12)
        assert found["double"].dtype == np.float64
        assert found["everywhere"].dtype == np.float32
        assert found["nowhere_is_none"]


def test_total_sums_without_gradient_and_leaves_its_input(members):
    size = len(members)
    for rank, found in enumerate(members):
        assert list(found["total"]) == [size, size * (size - 1) / 2]
        assert not found["total_has_gradient"]
        assert list(found["values_kept"]) == [1, rank]


def test_any_is_true_if_one_worker_says_so(members):
    for found in members:
        assert list(found["any"]) == [False, True, True]


def test_broadcast_overwrites_parameters_and_strided_tensors(members):
    for found in members:
        np.testing.assert_array_equal(found["broadcast"], np.zeros((2, 4)))
        np.testing.assert_array_equal(found["broadcast_turned"], np.arange(6).reshape(2, 3).T + 100)


def test_team_of_one_changes_nothing_and_needs_no_process_group():
    assert not torch.distributed.is_initialized()
    team, x = Team.solo(), rows_of(0).requires_grad_()
    assert (team.rank, team.size) == (0, 1)
    assert team.gather(x) is x
    x.grad = torch.ones_like(x)
    kept = x.detach().clone()
    team.sum_gradients([x])
    team.broadcast(x)
    team.barrier()
    assert torch.equal(x, kept)
    assert torch.equal(x.grad, torch.ones_like(x))
    assert torch.equal(team.total(x), kept)
    assert not team.total(x).requires_grad
    assert team.any(True)
    assert not team.any(False)
