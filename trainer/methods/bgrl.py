"""BGRL (methods 4.1; Thakoor et al., Large-Scale Representation Learning on Graphs via Bootstrapping, ICLR 2022).

    L = 2 − mean_i cos(q¹_i, y²_i) − mean_i cos(q²_i, y¹_i),   q = predictor(f_θ(view)),  y = f_ξ(view) without gradient
    after each step   ξ ← β_t ξ + (1 − β_t) θ,   β_t = 1 − (1 − β_0)(1 + cos(πt/T))/2

There are no negatives, so time and memory are linear in nodes and edges. The target averages parameters only: running
statistics of its BatchNorm come from its own forward passes, in training mode.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from trainer.methods.interface import Document, Learner, Loss, Method, Step, StepSize

if TYPE_CHECKING:
    from torch import Tensor, nn


class Published(NamedTuple):
    """One column of the authors' configurations; 10,000 epochs each, the first 1,000 of them warm-up."""

    hidden: int
    dim: int
    edge_drop: tuple[float, float]
    feature_mask: tuple[float, float]
    lr: float
    features: str = "rownorm"


PUBLISHED = {
    "photo": Published(256, 128, (0.4, 0.1), (0.1, 0.2), 1e-4),
    "computers": Published(256, 128, (0.5, 0.4), (0.2, 0.1), 5e-4),
    "wikics": Published(512, 256, (0.2, 0.3), (0.2, 0.1), 5e-4, "zscore"),
    "cs": Published(512, 256, (0.3, 0.2), (0.3, 0.4), 1e-5),
    "physics": Published(256, 128, (0.4, 0.1), (0.1, 0.4), 1e-5),
}
_CITATION = Published(512, 256, (0.2, 0.3), (0.2, 0.3), 5e-4)  # ours: nothing is published for these


class Bgrl(Method):
    """Predict the embedding that a slow copy of the encoder gives to the other view."""

    name: Literal["bgrl"] = "bgrl"
    momentum: float = Field(0.99, ge=0, le=1, description="β_0 of the target encoder; it rises to 1 at the last step")
    predictor: int = Field(512, ge=1, le=8_192, description="width of the predictor's inner layer")

    title: ClassVar[str] = "BGRL"
    paper: ClassVar[str] = "Large-Scale Representation Learning on Graphs via Bootstrapping, ICLR 2022"
    summary: ClassVar[str] = "no negatives: memory and time linear in the graph; wants many epochs"
    teams: ClassVar[bool] = True

    @classmethod
    def preset(cls, dataset: str) -> Document:
        """The published configuration; 1,000 epochs on citation graphs, 200 on sets that no one has tuned."""
        is_citation = dataset in ("cora", "citeseer", "pubmed")
        values = PUBLISHED.get(dataset, _CITATION)
        epochs = 10_000 if dataset in PUBLISHED else 1_000 if is_citation else 200
        document: Document = {
            "augment": {"edge_drop": [*values.edge_drop], "feature_mask": [*values.feature_mask]},
            "encoder": {
                "hidden": values.hidden, "dim": values.dim, "layers": 2, "activation": "prelu",
                "last_activation": "prelu", "norm": "batch",
            },
            "optimiser": {
                "epochs": epochs, "lr": values.lr, "weight_decay": 1e-5, "kind": "adamw", "schedule": "cosine",
                "warmup_epochs": epochs // 10,
            },
        }  # fmt: skip
        if dataset in PUBLISHED or is_citation:
            document["data"] = {"features": values.features}
        return document

    def space(self) -> dict[str, Document]:
        """The paper's rates (methods 7). Epochs are left alone: warm-up and cosine belong to their number."""
        return {
            "optimiser.lr": {"kind": "choice", "values": (1e-5, 1e-4, 5e-4)},
            "optimiser.weight_decay": {"kind": "choice", "values": (0.0, 1e-5, 1e-4, 1e-3)},
            "method.momentum": {"kind": "choice", "values": (0.9, 0.99, 0.999)},
        }

    def published(self, dataset: str, num_nodes: int) -> Document:
        values = PUBLISHED.get(dataset)
        return {} if values is None else {"optimiser.lr": values.lr, "optimiser.weight_decay": 1e-5}

    def check(self, spec: Any) -> None:
        optimiser = spec.optimiser
        if optimiser.warmup_epochs >= optimiser.epochs:
            raise ValueError(
                f"optimiser.warmup_epochs is {optimiser.warmup_epochs} of {optimiser.epochs} epochs, so the learning "
                "rate would never be reached. Lower it, to a tenth of the epochs for example"
            )

    # Memory

    def parameters(self, size: StepSize) -> int:
        return 2 * size.dim * self.predictor + self.predictor + size.dim + 1

    def state_bytes(self, size: StepSize) -> float:
        """The target encoder."""
        return float(size.number * size.parameters)

    def step_bytes(self, size: StepSize) -> float:
        """The predictor's layers for two views with what autograd keeps, its gradients, the target's embeddings."""
        return float(size.number * size.rows * (6 * self.predictor + 10 * size.dim))

    def tile_bytes(self, size: StepSize) -> float:
        return 0

    # Training

    def build(self, learner: Learner) -> None:
        import copy

        from trainer.nn.mlp import Mlp

        dim = learner.encoder.dim
        learner.parts["target"] = copy.deepcopy(learner.encoder).requires_grad_(False)
        learner.parts["predictor"] = Mlp((dim, self.predictor, dim), "prelu", generator=learner.generator("predictor"))

    def encode(self, learner: Learner, step: Step) -> tuple[Tensor, ...]:
        import torch

        online = step.views.encode()
        with torch.no_grad():
            return *online, *step.views.encode(learner.parts["target"])

    def loss(self, learner: Learner, step: Step) -> Loss:
        import torch

        from trainer.loss.bootstrap import bootstrap_loss

        h1, h2, y1, y2 = step.embeddings
        predictor, anchors = learner.parts["predictor"], int(learner.team.total(torch.tensor(len(h1))))
        loss = bootstrap_loss(predictor(h1), y2, anchors) + bootstrap_loss(predictor(h2), y1, anchors)
        return Loss(loss, {"loss": float(learner.team.total(loss)), "momentum": self.momentum_at(learner, step.number)})

    def after_step(self, learner: Learner, step: Step) -> None:
        """Where each of k steps in an epoch takes lr / k, the target moves by a k-th too."""
        share = 1 / learner.steps if learner.spec.optimiser.lr_scaling == "linear" else 1.0
        average(learner.parts["target"], learner.encoder, share * (1 - self.momentum_at(learner, step.number)))

    def momentum_at(self, learner: Learner, step: int) -> float:
        """β_t."""
        return 1 - (1 - self.momentum) * (1 + math.cos(math.pi * step / learner.total_steps)) / 2


def average(target: nn.Module, online: nn.Module, share: float) -> None:
    """Move the target's parameters, and no buffers, by `share` of the way."""
    import torch

    with torch.no_grad():
        for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
            slow.lerp_(fast, share)
