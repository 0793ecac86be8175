"""Linear probe: how well multinomial logistic regression reads the classes off frozen embeddings (methods 5.3).

Adam on mean cross-entropy, one head per weight decay, all heads from the same Xavier start. Validation accuracy is
looked at every second epoch and chooses both the weight decay and the epoch; the test nodes are looked at once, after
that choice. The heads share nothing but the data, so they are trained together as one tensor; the result is that of
training each alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from trainer.quality.splits import Split

WEIGHT_DECAYS = (0.0, 1e-4, 1e-3, 1e-2)  # ascending, so that the first of equals is the smallest
CHECK_EVERY = 2  # epochs between looks at validation
PATIENCE = 500  # epochs without a better validation accuracy of any head, after which training stops


@dataclass(frozen=True)
class ProbeResult:
    """Accuracies (shares) of the head that validation chose."""

    train: float
    val: float
    test: float
    weight_decay: float
    epoch: int  # at which the chosen head was taken
    epochs_run: int
    split: str
    sizes: dict[str, int]
    weight: Tensor  # [d + 1, C], the last row is the bias
    classes: Tensor  # [C]: the labels that occur among training nodes, column by column

    def as_dict(self) -> dict[str, Any]:
        """The figures without the weights, ready for JSON."""
        figures = {key: value for key, value in self.__dict__.items() if key not in ("weight", "classes")}
        return figures | {"sizes": dict(self.sizes), "classes_in_train": len(self.classes)}


def linear_probe(
    z: Tensor,
    y: Tensor,
    split: Split,
    *,
    epochs: int = 3_000,
    lr: float = 1e-2,
    l2_normalise: bool = False,
    seed: int = 0,
    weight_decays: tuple[float, ...] = WEIGHT_DECAYS,
    patience: int = PATIENCE,
) -> ProbeResult:
    """Train the heads, choose on validation, read test once.  z: [N, d] float, y: [N] int64.

    Training stops after `patience` epochs without a better validation accuracy, or when it is 100 %: a later head
    could then not win. The rule sees validation only. Columns are those labels that training nodes have, so not even
    the number of classes is learned from test nodes; a node of an unseen class counts as wrong.
    """
    x = normalize(z, dim=1) if l2_normalise else z
    x = torch.cat([x, x.new_ones(len(x), 1)], 1)  # the bias is one more row of W; like nn.Linear's, it decays too
    classes, target = torch.unique(y[split.train], return_inverse=True)
    heads = _Heads(x[split.train], target, len(classes), weight_decays, lr, seed)
    x_val, y_val = x[split.val], y[split.val]

    best_count, best_head, best_epoch = -1, 0, 0
    best_weight = heads.of(0)
    epoch = 0
    for epoch in range(1, epochs + 1):
        heads.step()
        if epoch % CHECK_EVERY and epoch != epochs:
            continue
        counts = (classes[heads.logits(x_val).argmax(2)] == y_val[:, None]).sum(0).tolist()  # one per head
        if max(counts) > best_count:  # strictly: of equal epochs the earliest stays
            best_count, best_epoch = max(counts), epoch
            best_head = counts.index(best_count)  # of equal heads the smallest weight decay
            best_weight = heads.of(best_head).clone()
        if best_count == len(y_val) or epoch - best_epoch >= patience:
            break

    def accuracy(nodes: Tensor) -> float:
        return int((classes[(x[nodes] @ best_weight).argmax(1)] == y[nodes]).sum()) / len(nodes)

    return ProbeResult(
        train=accuracy(split.train),
        val=accuracy(split.val),
        test=accuracy(split.test),  # the one and only use of test nodes
        weight_decay=weight_decays[best_head],
        epoch=best_epoch,
        epochs_run=epoch,
        split=split.name,
        sizes=split.sizes(),
        weight=best_weight,
        classes=classes,
    )


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
