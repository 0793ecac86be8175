"""GRACE (Zhu, Xu, Yu, Liu, Wu, Wang: Deep Graph Contrastive Representation Learning, GRL+ at ICML 2020; methods 4.2).

    ℓ_i = −t_ii + log( Σ_j e^{t_ij} + Σ_{j≠i} e^{t'_ij} ),   t_ij = cos(pu_i, pv_j)/τ,   t'_ij = cos(pu_i, pu_j)/τ

Each node must find itself in the other view among all nodes of both views; averaged over nodes and both directions.
p is a projector that only the loss sees. No table is kept and no N×N array made: trainer.loss.infonce goes by tiles.
`ProjectedContrast` is what methods that weigh these negatives differently share with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from pydantic import Field

from trainer.methods.interface import Document, Learner, Loss, Method, Scope, Step, StepSize
from trainer.spec.encoder import Activation

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.loss.infonce import PairWeights


DIAGNOSED_ANCHORS = 512
EPOCHS = (200, 1000, 1500, 2000, 2500)  # methods 7


class Column(NamedTuple):
    """One column of the table of published settings (methods 4.2)."""

    lr: float
    dim: int
    projection: int
    activation: Activation
    edge_drop: tuple[float, float]
    feature_mask: tuple[float, float]
    temperature: float
    epochs: int

    def sections(self) -> Document:
        """Of a spec. The inner layer is twice as wide as the embedding, both are activated, features sum to 1."""
        return {
            "data": {"features": "rownorm"},
            "method": {"temperature": self.temperature, "projection": self.projection},
            "encoder": {
                "hidden": 2 * self.dim, "dim": self.dim, "activation": self.activation,
                "last_activation": self.activation,
            },
            "augment": {"edge_drop": list(self.edge_drop), "feature_mask": list(self.feature_mask)},
            "optimiser": {"epochs": self.epochs, "lr": self.lr, "weight_decay": 1e-5},
        }  # fmt: skip

    def start(self) -> Document:
        """Of a sweep."""
        return {
            "method.temperature": self.temperature, "optimiser.lr": self.lr, "optimiser.weight_decay": 1e-5,
            "optimiser.epochs": self.epochs,
        }  # fmt: skip


# Cora and CiteSeer: tuned for the public split by hengruizhang98/grace; PubMed: GRACE; the others: GCA, tuned there for
# adaptive drop, so starting values here.
PUBLISHED = {
    "cora": Column(5e-4, 256, 256, "relu", (0.3, 0.4), (0.3, 0.4), 0.4, 400),
    "citeseer": Column(1e-3, 512, 512, "prelu", (0.3, 0.3), (0.3, 0.3), 0.4, 100),
    "pubmed": Column(1e-3, 256, 256, "relu", (0.4, 0.1), (0.0, 0.2), 0.7, 1500),
    "photo": Column(0.1, 256, 64, "relu", (0.3, 0.5), (0.1, 0.1), 0.3, 2000),
    "computers": Column(0.01, 128, 128, "rrelu_mean", (0.6, 0.3), (0.2, 0.3), 0.2, 2000),
    "wikics": Column(0.01, 256, 256, "prelu", (0.2, 0.3), (0.1, 0.1), 0.4, 3000),
    "cs": Column(5e-4, 256, 256, "rrelu_mean", (0.3, 0.2), (0.3, 0.4), 0.4, 1000),
    "physics": Column(0.01, 128, 64, "rrelu_mean", (0.4, 0.1), (0.1, 0.4), 0.5, 1500),
}


class ProjectedContrast(Method):
    """InfoNCE on projected embeddings, against nodes of both views with whatever weights `weights` gives them."""

    temperature: float = Field(0.5, gt=0.025, le=10, description="τ: below 0.025 float32 overflows")
    projection: int = Field(
        128, ge=1, le=8_192, description="inner width of the projector, two layers that only the loss sees"
    )

    scopes: ClassVar[tuple[Scope, ...]] = ("whole", "cached", "batch")
    teams: ClassVar[bool] = True
    weighs: ClassVar[bool] = True  # whether `weights` ever says anything

    @classmethod
    def preset(cls, dataset: str) -> Document:
        """As published; for other data sets settings of ours, short enough to try."""
        column = PUBLISHED.get(dataset)
        if column is not None:
            return column.sections()
        return {
            "encoder": {"hidden": 256, "dim": 128, "last_activation": "prelu"},
            "augment": {"edge_drop": [0.3, 0.4], "feature_mask": [0.2, 0.3]},
            "optimiser": {"epochs": 150, "lr": 1e-3, "weight_decay": 1e-5},
        }

    def space(self) -> dict[str, Document]:
        """The paper's table (methods 7)."""
        ratios = (0.1, 0.2, 0.3, 0.4, 0.5)
        pairs: Document = {"kind": "choice", "values": [[first, second] for first in ratios for second in ratios]}
        own: dict[str, Document] = {
            "method.temperature": {"kind": "uniform", "low": 0.1, "high": 1},
            "optimiser.epochs": {"kind": "choice", "values": EPOCHS},
            "augment.edge_drop": pairs, "augment.feature_mask": pairs,
        }  # fmt: skip
        return own | super().space()

    def published(self, dataset: str, num_nodes: int) -> Document:
        column = PUBLISHED.get(dataset)
        return {} if column is None else column.start()

    def parameters(self, size: StepSize) -> int:
        return 2 * size.dim * self.projection + size.dim + self.projection

    def step_bytes(self, size: StepSize) -> float:
        """Of both views: the projector's layers, projections, unit rows; gradients of the last three at once."""
        held = size.number * size.rows * (8.0 * size.dim + 6 * self.projection)
        if size.workers > 1:  # gathered from all workers, with gradients
            held += 4 * size.number * size.columns * size.dim
        if size.diagnoses and self.weighs:
            diagnosed = 5 * min(DIAGNOSED_ANCHORS, size.rows) * size.columns + 4 * size.rows * size.dim
            return max(held, float(size.number * diagnosed))
        return held

    def tile_bytes(self, size: StepSize) -> float:
        """Scratch, and tiles kept of u vᵀ and of the upper halves of u uᵀ and v vᵀ as far as there is room."""
        return super().tile_bytes(size) + min(size.keep, 2 * size.number * size.rows * size.columns)

    def build(self, learner: Learner) -> None:
        from trainer.nn.mlp import Mlp

        dim = learner.encoder.dim
        learner.parts["projector"] = Mlp((dim, self.projection, dim), "elu", generator=learner.generator("projector"))

    def project(self, learner: Learner, step: Step) -> tuple[Tensor, Tensor]:
        """What the loss compares: the step's embeddings through the projector."""
        u, v = (learner.parts["projector"](part) for part in step.embeddings)
        return u, v

    def weights(self, learner: Learner, step: Step) -> PairWeights | None:
        """Of the negatives of this step, for rows as `learner.team` gathers them; none: 1, as in GRACE."""
        return None

    def diagnose(self, learner: Learner, step: Step) -> Mapping[str, float]:
        """Mean weight of false and of true negatives, for a fixed sample of this step's anchors (methods 5.5)."""
        import torch
        from torch.nn.functional import normalize

        from trainer.loss.weights import weight_report

        weights, nodes = self.weights(learner, step), step.views.nodes
        if weights is None or weights.inter is None or learner.team.size > 1:
            return {}
        n = len(nodes)
        chosen = torch.randperm(n, generator=learner.generator("anchors"))[:DIAGNOSED_ANCHORS]
        with torch.no_grad():
            u, v = (normalize(part) for part in self.project(learner, step))
            table = u.new_ones(len(chosen), n)
            for row, anchor in enumerate(chosen.tolist()):
                found = weights.inter.tile(slice(anchor, anchor + 1), slice(0, n))
                if found is not None:
                    table[row] = found[0]
            table[torch.arange(len(chosen)), chosen] = 0
            table /= table.mean(1, keepdim=True).clamp_min(1e-12) * n / max(1, n - 1)
            table[torch.arange(len(chosen)), chosen] = 1  # an anchor is no negative of itself
            labels = learner.graph.y
            return weight_report(table, u[chosen] @ v.T, chosen, None if labels is None else labels[nodes])

    def loss(self, learner: Learner, step: Step) -> Loss:
        from trainer.loss.infonce import infonce_loss

        u, v = self.project(learner, step)
        total = infonce_loss(
            u, v, tau=self.temperature, weights=self.weights(learner, step), tile=learner.spec.sampling.tile,
            memory=learner.tiles, team=learner.team,
        )  # fmt: skip
        return Loss(total, {"loss": float(learner.team.total(total))})


class Grace(ProjectedContrast):
    """All negatives of both views weigh the same."""

    name: Literal["grace"] = "grace"

    title: ClassVar[str] = "GRACE"
    paper: ClassVar[str] = "Deep Graph Contrastive Representation Learning, GRL+ at ICML 2020"
    summary: ClassVar[str] = "the base of many: each node against all others of both views"
    weighs: ClassVar[bool] = False
