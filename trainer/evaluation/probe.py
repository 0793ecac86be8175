"""Linear probe: how well multinomial logistic regression reads the classes off frozen embeddings (methods 5.3).

Adam on mean cross-entropy, one head per weight decay, all heads from the same Xavier start. Validation accuracy is
looked at every second epoch and chooses both the weight decay and the epoch (`choose_head`, which knows no test nodes
and also serves to watch training); test nodes are looked at once, after that choice (`linear_probe`). The heads share
nothing but the data, so they are trained together as one tensor; the result is that of training each alone.

Of many training or validation nodes a seeded sample is used; the draw knows how many there are, not what they are. Test
accuracy is over all test nodes, read by pieces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from trainer.data.seeds import generator
from trainer.evaluation.rows import Rows, sample
from trainer.evaluation.splits import Split
from trainer.spec.evaluation import EvaluationSpec

WEIGHT_DECAYS = (0.0, 1e-4, 1e-3, 1e-2)  # ascending, so that the first of equals is the smallest
CHECK_EVERY = 2  # epochs between looks at validation
PATIENCE = 500  # epochs without a better validation accuracy of any head, after which training stops


class Settings(TypedDict):
    """What a spec says of the probe: keyword arguments of `choose_head` and `linear_probe`."""

    epochs: int
    lr: float
    l2_normalise: bool
    seed: int
    max_nodes: int


def settings_of(spec: EvaluationSpec, seed: int) -> Settings:
    """The probe that `spec` asks for in a run of this seed."""
    return Settings(
        epochs=spec.probe_epochs, lr=spec.probe_lr, l2_normalise=spec.l2_normalise, seed=seed,
        max_nodes=spec.max_probe_nodes,
    )  # fmt: skip


@dataclass(frozen=True)
class Head:
    """The head that validation chose, and its accuracies (shares) over the nodes that `used` counts."""

    weight: Tensor  # [d + 1, C], the last row is the bias
    classes: Tensor  # [C]: the labels that occur among the training nodes used, column by column
    weight_decay: float
    epoch: int  # at which it was taken
    epochs_run: int
    train: float
    val: float
    used: dict[str, int]  # training and validation nodes that were looked at


@dataclass(frozen=True)
class ProbeResult:
    """Accuracies (shares) of the head that validation chose, each over the nodes that `used` counts."""

    train: float
    val: float
    test: float
    weight_decay: float
    epoch: int  # at which the chosen head was taken
    epochs_run: int
    split: str
    sizes: dict[str, int]  # nodes of the split
    used: dict[str, int]  # nodes of it that were looked at
    weight: Tensor  # as in Head
    classes: Tensor

    @property
    def sampled(self) -> bool:
        return self.used != self.sizes

    def as_dict(self) -> dict[str, Any]:
        """The figures without the weights, ready for JSON."""
        figures = {key: value for key, value in self.__dict__.items() if key not in ("weight", "classes")}
        copies = {"sizes": dict(self.sizes), "used": dict(self.used)}
        return figures | copies | {"sampled": self.sampled, "classes_in_train": len(self.classes)}


def linear_probe(
    z: np.ndarray | Tensor | Rows,
    y: Tensor,
    split: Split,
    *,
    epochs: int = 3_000,
    lr: float = 1e-2,
    l2_normalise: bool = False,
    seed: int = 0,
    max_nodes: int = 50_000,
    weight_decays: tuple[float, ...] = WEIGHT_DECAYS,
    patience: int = PATIENCE,
    refit: bool = False,
) -> ProbeResult:
    """Choose a head without the test nodes (`choose_head`), then read them once.  z: [N, d] float, y: [N] int64.

    A test node of a class that no training node has counts as wrong. With `refit`, a head with the chosen weight decay
    is trained for the chosen number of epochs on training and validation nodes together, and tested instead.
    """
    table = Rows.of(z)
    head = choose_head(
        table, y, split.train, split.val, epochs=epochs, lr=lr, l2_normalise=l2_normalise, seed=seed,
        max_nodes=max_nodes, weight_decays=weight_decays, patience=patience,
    )  # fmt: skip
    if refit:
        head = _refitted(table, y, torch.cat([split.train, split.val]), head, lr, l2_normalise, seed, max_nodes)
    pieces = table.gathered(split.test, unit=l2_normalise)
    right = sum(_right(_with_bias(rows), head.weight, head.classes, y[split.test[where]]) for where, rows in pieces)
    return ProbeResult(
        train=head.train,
        val=head.val,
        test=right / len(split.test),  # the one and only use of test nodes
        weight_decay=head.weight_decay,
        epoch=head.epoch,
        epochs_run=head.epochs_run,
        split=split.name,
        sizes=split.sizes(),
        used=split.sizes() | head.used,
        weight=head.weight,
        classes=head.classes,
    )


def choose_head(
    z: np.ndarray | Tensor | Rows,
    y: Tensor,
    train: Tensor,
    val: Tensor,
    *,
    epochs: int = 3_000,
    lr: float = 1e-2,
    l2_normalise: bool = False,
    seed: int = 0,
    max_nodes: int = 50_000,
    weight_decays: tuple[float, ...] = WEIGHT_DECAYS,
    patience: int = PATIENCE,
) -> Head:
    """Train a head per weight decay on `train`, take the best on `val` (node indices), and look at no other node.

    Training stops after `patience` epochs without a better validation accuracy, or when it is 100 %: a later head
    could then not win. The rule sees validation only. Columns are those labels that training nodes have, so not even
    the number of classes is learned from other nodes; a node of an unseen class counts as wrong.

    More than `max_nodes` training (or validation) nodes: that many of them, drawn by `seed`. Memory: about 4 bytes ×
    (d + 10 · classes) per training and validation node used.
    """
    table = Rows.of(z)
    train = sample(train, max_nodes, generator(seed, "probe sample train"))
    val = sample(val, max_nodes, generator(seed, "probe sample val"))
    classes, target = torch.unique(y[train], return_inverse=True)
    heads = _Heads(_inputs(table, train, l2_normalise), target, len(classes), weight_decays, lr, seed)
    x_val = _inputs(table, val, l2_normalise)
    chosen = _choose(heads, x_val, classes, y[val], epochs=epochs, patience=patience)
    return Head(
        weight=chosen.weight,
        classes=classes,
        weight_decay=weight_decays[chosen.head],
        epoch=chosen.epoch,
        epochs_run=chosen.epochs_run,
        train=_right(heads.x, chosen.weight, classes, y[train]) / len(train),
        val=_right(x_val, chosen.weight, classes, y[val]) / len(val),
        used={"train": len(train), "val": len(val)},
    )


def _refitted(
    table: Rows, y: Tensor, nodes: Tensor, chosen: Head, lr: float, unit: bool, seed: int, max_nodes: int
) -> Head:
    """The chosen settings on all labelled nodes but the test nodes."""
    nodes = sample(nodes, 2 * max_nodes, generator(seed, "probe sample refit"))
    classes, target = torch.unique(y[nodes], return_inverse=True)
    heads = _Heads(_inputs(table, nodes, unit), target, len(classes), (chosen.weight_decay,), lr, seed)
    for _ in range(chosen.epoch):
        heads.step()
    return replace(chosen, weight=heads.of(0), classes=classes)


def _right(x: Tensor, weight: Tensor, classes: Tensor, y: Tensor) -> int:
    """How many nodes a head classifies correctly.  x: [n, d + 1], weight: [d + 1, C], classes: [C], y: [n]."""
    return int((classes[(x @ weight).argmax(1)] == y).sum())


def _with_bias(rows: Tensor) -> Tensor:
    """[n, d] -> [n, d + 1]: the bias is one more row of W; like nn.Linear's, it decays too."""
    return pad(rows, (0, 1), value=1.0)


def _inputs(table: Rows, nodes: Tensor, unit: bool) -> Tensor:
    """`_with_bias` of some rows, gathered in place rather than copied a second time."""
    x = torch.ones(len(nodes), table.dim + 1, dtype=table.dtype)
    for where, rows in table.gathered(nodes, unit=unit):
        x[where, :-1] = rows
    return x


@dataclass(frozen=True)
class _Choice:
    """The head that validation chose."""

    weight: Tensor  # [d + 1, C]
    head: int
    epoch: int
    epochs_run: int


def _choose(heads: _Heads, x: Tensor, classes: Tensor, y: Tensor, *, epochs: int, patience: int) -> _Choice:
    """Train the heads and take the best by accuracy on validation nodes.  x: [n, d + 1], y: [n]."""
    best_count, best_head, best_epoch = -1, 0, 0
    best_weight = heads.of(0)
    epoch = 0
    for epoch in range(1, epochs + 1):
        heads.step()
        if epoch % CHECK_EVERY and epoch != epochs:
            continue
        counts = (classes[heads.logits(x).argmax(2)] == y[:, None]).sum(0).tolist()  # one per head
        if max(counts) > best_count:  # strictly: of equal epochs the earliest stays
            best_count, best_epoch = max(counts), epoch
            best_head = counts.index(best_count)  # of equal heads the smallest weight decay
            best_weight = heads.of(best_head).clone()
        if best_count == len(y) or epoch - best_epoch >= patience:
            break
    return _Choice(best_weight, best_head, best_epoch, epoch)


class _Heads:
    """H logistic regressions on the same rows, one per weight decay, with one Adam for all of them."""

    def __init__(
        self, x: Tensor, target: Tensor, classes: int, weight_decays: tuple[float, ...], lr: float, seed: int
    ) -> None:
        if list(weight_decays) != sorted(weight_decays):
            raise ValueError("weight_decays must ascend: ties are resolved in favour of the first")
        start = x.new_zeros(x.shape[1], classes)
        bound = (6 / (x.shape[1] - 1 + classes)) ** 0.5  # Xavier, without the bias row, which starts at zero
        noise = torch.rand(x.shape[1] - 1, classes, generator=torch.Generator().manual_seed(seed))
        start[:-1] = (2 * noise - 1) * bound
        self.x = x
        self.onehot = one_hot(target, classes).to(x)[:, None]  # [n, 1, C]
        self.decay = x.new_tensor(weight_decays)[:, None]
        # [d + 1, H, C] rather than [H, d + 1, C]: all heads' logits are then one matrix product, some 5 times faster.
        self.weight = start[:, None].repeat(1, len(weight_decays), 1)
        self.adam = torch.optim.Adam([self.weight], lr=lr, fused=True)

    def of(self, head: int) -> Tensor:
        """Weights of one head, [d + 1, C]."""
        return self.weight[:, head]

    def logits(self, x: Tensor) -> Tensor:
        """[n, d + 1] -> [n, H, C]."""
        return (x @ self.weight.flatten(1)).view(len(x), *self.weight.shape[1:])

    def step(self) -> None:
        """One full-batch epoch. The gradient is written out: it is shorter than the autograd form."""
        error = torch.softmax(self.logits(self.x), 2).sub_(self.onehot).div_(len(self.x))  # ∂ mean CE / ∂ logits
        gradient = (self.x.T @ error.flatten(1)).view_as(self.weight)
        self.weight.grad = gradient.add_(self.decay * self.weight)  # L2 in the gradient, as torch.optim.Adam has it
        self.adam.step()
