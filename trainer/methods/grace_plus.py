"""GRACE+ (Chi, Ma: Enhancing Graph Contrastive Learning with Node Similarity, arXiv 2208.06743, 2022; methods 4.7).

    Num_i = exp( Σ_{j≠i} p_ij cos(pu_i, pu_j)/τ ) + exp( Σ_j p_ij cos(pu_i, pv_j)/τ )
    Den_i = e^{t_ii} + Σ_{j≠i} n_ij (e^{t_ij} + e^{t'_ij}),      ℓ_i = −log(Num_i / Den_i)

GRACE with many soft positives and weighted negatives: p and n follow from how alike nodes are in the graph
(personalised PageRank) and in their features, computed once. All is exact but for one table of 2 N² bytes that holds
the similarities in half precision (trainer.loss.node_similarity says what that costs). Num is no part of Den, so the
loss may be negative. In a batch, p and n are normalised over its nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, cast

from pydantic import Field

from trainer.methods.grace import ProjectedContrast
from trainer.methods.interface import Document, Learner, Loss, Step, StepSize

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.loss.infonce import PairWeights
    from trainer.loss.node_similarity import NodeSimilarity, SoftWeights

_BLOCK = 1 << 24  # trainer.loss.similar_nodes


class Similarity(NamedTuple):
    """A column of the table of published settings."""

    tau_positive: float
    tau_negative: float
    feature_weight: float
    adaptive: Literal["none", "degree"] = "degree"


# The first three from GRACE+; the others from GCA+, the same idea on GCA, for which alone they were published.
PUBLISHED = {
    "cora": Similarity(0.1, 0.1, 0.6, "none"),
    "citeseer": Similarity(10, 0.001, 0.9, "none"),
    "pubmed": Similarity(1, 0.1, 0.7, "none"),
    "photo": Similarity(0.001, 0.1, 0.5),
    "computers": Similarity(0.1, 0.001, 0.3),
    "wikics": Similarity(0.5, 0.01, 0.5),
    "cs": Similarity(1, 0.01, 0.7),
}


class GracePlus(ProjectedContrast):
    """GRACE with positives and negatives weighted by node similarity."""

    name: Literal["grace-plus"] = "grace-plus"
    tau_positive: float = Field(0.1, ge=1e-4, le=100, description="τ_pos: small takes the most similar nodes only")
    tau_negative: float = Field(0.1, ge=1e-4, le=100, description="τ_neg: small leaves similar nodes out")
    feature_weight: float = Field(0.6, ge=0, le=1, description="β: share of features in the similarity; 0: graph alone")

    title: ClassVar[str] = "GRACE+"
    paper: ClassVar[str] = "Enhancing Graph Contrastive Learning with Node Similarity, arXiv 2208.06743"
    summary: ClassVar[str] = "GRACE with soft positives and negatives by node similarity; a table of 2 N² bytes"

    @classmethod
    def preset(cls, dataset: str) -> Document:
        sections, values = super().preset(dataset), PUBLISHED.get(dataset)
        if values is None:
            return sections
        own = {key: value for key, value in values._asdict().items() if key != "adaptive"}
        sections["method"] |= own
        sections["augment"]["adaptive"] = values.adaptive
        if dataset == "wikics":
            sections["optimiser"]["epochs"] = 800
        return sections

    def space(self) -> dict[str, Document]:
        """β as the paper under reproduction searches it (methods 7), and its epochs."""
        return super().space() | {
            "method.feature_weight": {"kind": "choice", "values": (0.5, 0.8)},
            "optimiser.epochs": {"kind": "choice", "values": (500, 1000, 1500, 2000)},
        }

    def published(self, dataset: str, num_nodes: int) -> Document:
        values = PUBLISHED.get(dataset)
        own = {} if values is None else {"method.feature_weight": values.feature_weight}
        return super().published(dataset, num_nodes) | own

    def state_bytes(self, size: StepSize) -> float:
        """The table, and blocks of rows while it is made."""
        return 2.0 * size.nodes**2 + 4 * 4 * min(_BLOCK, size.nodes**2)

    def step_bytes(self, size: StepSize) -> float:
        """Beside GRACE's: both views side by side, their means over positives, and gradients of both."""
        return super().step_bytes(size) + 8.0 * size.number * size.rows * size.dim

    def tile_bytes(self, size: StepSize) -> float:
        """Weights of a tile's rows and columns, and what is made on the way."""
        return super().tile_bytes(size) + 6.0 * size.number * min(size.tile, size.rows) * min(size.tile, size.columns)

    def build(self, learner: Learner) -> None:
        from trainer.loss.node_similarity import NodeSimilarity

        super().build(learner)
        learner.parts["similarity"] = NodeSimilarity(
            learner.graph, beta=self.feature_weight, tau_positive=self.tau_positive, tau_negative=self.tau_negative
        )

    def weights(self, learner: Learner, step: Step) -> PairWeights:
        from trainer.loss.infonce import PairWeights

        negative = _among(learner, step).negative
        return PairWeights(inter=negative, intra=negative)

    def loss(self, learner: Learner, step: Step) -> Loss:
        import torch
        from torch.nn.functional import normalize

        from trainer.loss.infonce import infonce_terms
        from trainer.loss.tile_weights import weighted_sum

        team, tile, tau = learner.team, learner.spec.sampling.tile, self.temperature
        u, v = (normalize(part) for part in self.project(learner, step))
        dens = infonce_terms(
            u, v, tau=tau, weights=self.weights(learner, step), tile=tile, memory=learner.tiles, team=team
        )
        among = _among(learner, step)
        means = weighted_sum(among.positive, torch.cat([u, v], 1), tile=tile, team=team).chunk(2, 1)
        own = among.own[team.own_rows(len(u))].to(u)

        def log_num(anchor: Tensor, same: Tensor, other: Tensor) -> Tensor:
            return torch.logaddexp(((anchor * same).sum(1) - own) / tau, (anchor * other).sum(1) / tau)

        losses = dens.log_den_u - log_num(u, *means) + dens.log_den_v - log_num(v, *means[::-1])
        anchors = float(team.total(torch.tensor(float(len(u)))))
        total = losses.sum() / (2 * anchors)
        return Loss(total, {"loss": float(team.total(total))})


def _among(learner: Learner, step: Step) -> SoftWeights:
    """p and n of the step's nodes, as the team gathers them."""
    if "among" not in step.notes:
        similarity = cast("NodeSimilarity", learner.parts["similarity"])
        step.notes["among"] = similarity.among(learner.team.gather(step.views.nodes), learner.dtype)
    found: SoftWeights = step.notes["among"]
    return found
