"""Which labelled nodes the probe may train on, choose on, and be tested on (methods 5.2, 5.3).

    clean        the data set's public split, else a random 10 % train / 10 % validation / 80 % test
    bgrl20       a random 20 / 80 as BGRL's: half of the 20 % chooses the probe's settings, then it trains on all of it
    pygcl_swap   a random 10 / 80 / 10, which public code uses by swapping two arguments: the stopping epoch is then
                 chosen on eight times more data than intended. Only to explain published numbers.

Nodes without a label (y = -1) are in no part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trainer.errors import InvalidInput

Protocol = Literal["clean", "bgrl20", "pygcl_swap"]
_SHARES: dict[str, tuple[int, int, int]] = {"clean": (10, 10, 80), "bgrl20": (10, 10, 80), "pygcl_swap": (10, 80, 10)}


class NoSplit(InvalidInput):
    """There is no usable train/validation/test split; the message says why."""


@dataclass(frozen=True)
class Split:
    """Disjoint node indices, int64, and the name under which figures are reported."""

    train: Tensor
    val: Tensor
    test: Tensor
    name: str

    def sizes(self) -> dict[str, int]:
        """Number of nodes in each part."""
        return {"train": len(self.train), "val": len(self.val), "test": len(self.test)}


def choose_split(y: Tensor, public: Mapping[str, Tensor] | None, protocol: Protocol, seed: int) -> Split:
    """The split that `protocol` asks for; the same seed gives the same one.  y: [N], -1 without a label.

    Raises:
        NoSplit: too few labelled nodes or classes, or a public split that lacks or shares nodes.
    """
    if protocol == "clean" and public is not None:
        split = _from_public(y, public)
    else:
        split = _at_random(y, _SHARES[protocol], seed)
    classes = len(torch.unique(y[split.train]))
    if classes < 2:
        raise NoSplit(f"{split.name}: all {len(split.train)} training nodes have the same label; label more nodes")
    return split


def _from_public(y: Tensor, public: Mapping[str, Tensor]) -> Split:
    """The given split without its unlabelled nodes."""
    parts = {}
    for name in ("train", "val", "test"):
        nodes = torch.as_tensor(public.get(name, ()), dtype=torch.long)
        parts[name] = nodes[y[nodes] >= 0]
        if not len(parts[name]):
            raise NoSplit(f"the public split has no labelled {name} nodes")
    together = torch.cat(list(parts.values()))
    if len(torch.unique(together)) != len(together):
        raise NoSplit("the public split names a node twice, so it would be both learned from and judged by")
    return Split(parts["train"], parts["val"], parts["test"], "public")


def _at_random(y: Tensor, shares: tuple[int, int, int], seed: int) -> Split:
    """A random partition of the labelled nodes; `shares` in percent, what rounding leaves goes to the last part."""
    name = f"random {'/'.join(map(str, shares))}"
    labelled = torch.nonzero(y >= 0).flatten()
    total = len(labelled)
    train, val = total * shares[0] // 100, total * shares[1] // 100
    if train < 2:
        raise NoSplit(f"{name}: {total} labelled nodes are too few, at least 20 are needed to train on two of them")
    order = labelled[torch.randperm(total, generator=torch.Generator().manual_seed(seed))]
    split = Split(order[:train], order[train : train + val], order[train + val :], name)
    # Methods 5.3 asks for this: swapped parts have gone unnoticed in published code.
    for part, share in zip((split.train, split.val, split.test), shares, strict=True):
        if abs(len(part) - total * share / 100) > 2:
            raise AssertionError(f"{name}: a part holds {len(part)} of {total} nodes instead of {share} %")
    return split
