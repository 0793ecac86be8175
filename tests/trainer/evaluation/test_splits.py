"""Splits: sizes, disjointness, and that no unlabelled node slips in."""

from __future__ import annotations

import pytest
import torch

from trainer.evaluation.splits import NoSplit, choose_split


def labels(total: int, unlabelled: int = 0, classes: int = 4) -> torch.Tensor:
    y = torch.arange(total) % classes
    y[torch.randperm(total, generator=torch.Generator().manual_seed(9))[:unlabelled]] = -1
    return y


@pytest.mark.parametrize("total, unlabelled", [(1000, 0), (997, 0), (500, 123), (20, 0)])
@pytest.mark.parametrize("protocol, shares", [("clean", (0.1, 0.1, 0.8)), ("pygcl_swap", (0.1, 0.8, 0.1))])
def test_random_split_partitions_the_labelled_nodes_in_the_promised_shares(total, unlabelled, protocol, shares):
    y = labels(total, unlabelled)
    split = choose_split(y, None, protocol, seed=3)
    together = torch.cat([split.train, split.val, split.test])
    assert sorted(together.tolist()) == torch.nonzero(y >= 0).flatten().tolist()
    for part, share in zip((split.train, split.val, split.test), shares, strict=True):
        assert abs(len(part) - share * (total - unlabelled)) <= 2
    assert split.name == ("random 10/10/80" if protocol == "clean" else "random 10/80/10")


def test_seed_alone_decides_the_split():
    y = labels(300)
    torch.manual_seed(1)
    first = choose_split(y, None, "clean", seed=5)
    torch.manual_seed(2)
    again = choose_split(y, None, "clean", seed=5)
    other = choose_split(y, None, "clean", seed=6)
    assert torch.equal(first.train, again.train)
    assert torch.equal(first.test, again.test)
    assert not torch.equal(first.train, other.train)


def test_public_split_is_kept_except_for_its_unlabelled_nodes():
    y = labels(100)
    y[[0, 50]] = -1
    public = {"train": torch.arange(20), "val": torch.arange(20, 40), "test": torch.arange(40, 100)}
    split = choose_split(y, public, "clean", seed=0)
    assert split.name == "public"
    assert split.train.tolist() == list(range(1, 20))
    assert 50 not in split.test.tolist()
    assert split.sizes() == {"train": 19, "val": 20, "test": 59}


def test_swap_protocol_ignores_the_public_split_and_says_so():
    public = {"train": torch.arange(20), "val": torch.arange(20, 40), "test": torch.arange(40, 100)}
    split = choose_split(labels(100), public, "pygcl_swap", seed=0)
    assert split.name == "random 10/80/10"
    assert split.sizes() == {"train": 10, "val": 80, "test": 10}


def test_public_split_that_shares_a_node_between_parts_is_refused():
    public = {"train": torch.arange(21), "val": torch.arange(20, 40), "test": torch.arange(40, 100)}
    with pytest.raises(NoSplit, match="twice"):
        choose_split(labels(100), public, "clean", seed=0)


def test_public_split_without_validation_is_refused():
    with pytest.raises(NoSplit, match="no labelled val"):
        choose_split(labels(100), {"train": torch.arange(20), "test": torch.arange(40, 100)}, "clean", seed=0)


def test_too_few_labels_are_refused_with_the_number_found():
    with pytest.raises(NoSplit, match=r"\b19 labelled nodes are too few"):
        choose_split(labels(100, unlabelled=81), None, "clean", seed=0)


def test_one_class_among_training_nodes_is_refused():
    y = torch.zeros(200, dtype=torch.long)
    with pytest.raises(NoSplit, match="same label"):
        choose_split(y, None, "clean", seed=0)
