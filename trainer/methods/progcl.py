"""ProGCL (Xia, Wu, Wang, Chen, Li: Rethinking Hard Negative Mining in Graph Contrastive Learning, ICML 2022).

    ℓ_i = −t_ii + log( e^{t_ii} + Σ_{j≠i} w_ij (e^{t_ij} + e^{t'_ij}) ),   w_ij = B_ij / mean_{k≠i} B_ik
    B_ij = P_t(x_ij) x_ij,   x_ij = (cos(pu*_i, pv*_j) + 1)/2

GRACE until epoch e_0. There a mixture of two Beta distributions is fitted to similarities of some columns; P_t is the
posterior that a negative is a true one, so what is hard *and* true weighs most. u*, v* and P_t are frozen at e_0 and B
is used for both views and both directions, untransposed, as published (weight mode; the paper's mix mode is not here).
Memory: u*, v* and row means; B is rebuilt tile by tile from them and P_t(x) x at 4,096 points, interpolated between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from pydantic import Field

from trainer.methods.grace import EPOCHS, Column, ProjectedContrast
from trainer.methods.interface import Document, Learner, Step, StepSize

if TYPE_CHECKING:
    from trainer.loss.frozen_negatives import FrozenNegatives
    from trainer.loss.infonce import PairWeights

PUBLISHED = {
    "photo": Column(0.01, 128, 128, "rrelu_mean", (0.6, 0.3), (0.2, 0.3), 0.2, 2500),
    "computers": Column(0.01, 128, 128, "rrelu_mean", (0.6, 0.3), (0.2, 0.3), 0.2, 2000),
    "wikics": Column(0.01, 256, 256, "prelu", (0.2, 0.3), (0.1, 0.1), 0.4, 3000),
    "cs": Column(1e-4, 256, 256, "rrelu_mean", (0.3, 0.2), (0.3, 0.4), 0.2, 1000),
}


class ProGcl(ProjectedContrast):
    """GRACE whose negatives weigh by how likely and how hard they are, from one epoch on."""

    name: Literal["progcl"] = "progcl"
    start_epoch: int | None = Field(
        None, ge=1, le=1_000_000, description="e_0: from here on negatives are weighted; none: after 0.4 of the epochs"
    )
    refit_every: int | None = Field(
        None, ge=1, le=1_000_000, description="epochs between fits of the mixture after that; none: once, as published"
    )
    false_share: float = Field(
        0.05, gt=0, lt=1, description="w_0: share of false negatives from which the mixture is fitted"
    )
    fit_columns: int = Field(100, ge=1, le=10_000, description="nodes whose similarities to all others it is fitted to")
    fit_steps: int = Field(10, ge=1, le=1_000, description="EM steps")

    title: ClassVar[str] = "ProGCL"
    paper: ClassVar[str] = "ProGCL: Rethinking Hard Negative Mining in Graph Contrastive Learning, ICML 2022"
    summary: ClassVar[str] = "GRACE with negatives weighted by a mixture model: hard and probably true ones first"

    @classmethod
    def preset(cls, dataset: str) -> Document:
        """As published; where nothing is, GRACE's settings and e_0 = 0.4 T."""
        column = PUBLISHED.get(dataset)
        sections = super().preset(dataset) if column is None else column.sections()
        if column is not None:
            sections["method"]["start_epoch"] = 400
        sections["augment"]["adaptive"] = "eigenvector"
        return sections

    def published(self, dataset: str, num_nodes: int) -> Document:
        column = PUBLISHED.get(dataset)
        return super().published(dataset, num_nodes) if column is None else column.start()

    def space(self) -> dict[str, Document]:
        longer = [epochs for epochs in EPOCHS if epochs > (self.start_epoch or 0)]
        return super().space() | {"optimiser.epochs": {"kind": "choice", "values": longer or EPOCHS[-1:]}}

    def check(self, spec: Any) -> None:
        if self.start_epoch is not None and self.start_epoch >= spec.optimiser.epochs:
            raise ValueError(
                f"method.start_epoch ({self.start_epoch}) is not before the last of {spec.optimiser.epochs} epochs, so "
                "progcl would be grace. Lower it or leave it out"
            )

    def state_bytes(self, size: StepSize) -> float:
        return size.number * size.nodes * (2.0 * size.dim + 1)

    def step_bytes(self, size: StepSize) -> float:
        """A step, or the fit: both views of all nodes before they are frozen, and the sample."""
        fit = size.number * size.nodes * (4.0 * size.dim + 2 * self.projection + 8 * self.fit_columns)
        return max(super().step_bytes(size), fit)

    def tile_bytes(self, size: StepSize) -> float:
        """Weights of a tile's rows and columns, and what interpolation makes on the way."""
        tile = min(size.tile, size.rows) * min(size.tile, size.columns)
        return super().tile_bytes(size) + (5 * size.number + 16) * tile

    def start(self, epochs: int) -> int:
        """e_0, from 1."""
        return self.start_epoch or round(0.4 * epochs) + 1

    def build(self, learner: Learner) -> None:
        from trainer.loss.frozen_negatives import FrozenNegatives

        super().build(learner)
        learner.parts["negatives"] = FrozenNegatives(learner.graph.num_nodes, learner.encoder.dim)

    def before_epoch(self, learner: Learner, epoch: int) -> None:
        import torch
        from torch.nn.functional import normalize

        since = epoch - self.start(learner.spec.optimiser.epochs)
        if since and (since < 0 or self.refit_every is None or since % self.refit_every):
            return
        n, projector = learner.graph.num_nodes, learner.parts["projector"]
        u, v = learner.encode_all(epoch, lambda rows: normalize(projector(rows)))
        columns = torch.randperm(n, generator=learner.generator("mixture", epoch))[: self.fit_columns]
        _negatives(learner).fit(
            u, v, columns, false_share=self.false_share, steps=self.fit_steps, tile=learner.spec.sampling.tile
        )

    def weights(self, learner: Learner, step: Step) -> PairWeights | None:
        from trainer.loss.infonce import PairWeights

        if not _negatives(learner).is_fitted:
            return None
        weights = _negatives(learner).weights(learner.team.gather(step.views.nodes))
        return PairWeights(inter=weights, intra=weights)


def _negatives(learner: Learner) -> FrozenNegatives:
    return cast("FrozenNegatives", learner.parts["negatives"])
