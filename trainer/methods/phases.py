"""PHASES (Sun, Zhang, Lin: Progressive Hard Negative Masking: From Global Uniformity to Local Tolerance, TKDE 2023).

    ℓ_i = −t_ii + log( e^{t_ii} + Σ_{j≠i} (1 − mask_ij) (e^{t_ij} + e^{t'_ij}) )

GRACE that starts with all negatives and then leaves out the hardest ones of each anchor: at epoch e the K_e most
similar nodes, where K_e rises from 0 at `start` to `masked` at `full`. Neither code nor full text was available: a
re-implementation from title, abstract and search space (methods 4.5). Memory: a table of N × `masked` numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from pydantic import Field

from trainer.errors import InvalidInput
from trainer.methods.grace import ProjectedContrast
from trainer.methods.interface import Document, Learner, Step, StepSize

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.loss.infonce import PairWeights
    from trainer.loss.similar_nodes import SimilarNodes

MASKED = {"photo": 500, "wikics": 500, "pubmed": 1_000, "computers": 1_000}
MOST_NODES = 200_000  # all pairs are compared once: an hour at this size


class Phases(ProjectedContrast):
    """GRACE without each anchor's most similar negatives."""

    name: Literal["phases"] = "phases"
    masked: int = Field(
        50, ge=0, le=10_000, description="K_m: negatives of each anchor left out in the end; at most half of the nodes"
    )
    masked_share: float | None = Field(
        None, gt=0, le=0.5, description="K_m as a share of all nodes, for graphs of any size; none: `masked` counts"
    )
    start: float = Field(0.1, ge=0, le=1, description="share of the epochs after which masking begins")
    full: float = Field(0.6, ge=0, le=1, description="share of the epochs after which all K_m are masked")
    source: Literal["input", "embedding"] = Field(
        "input", description="similar by the features, found once, or by the latest embeddings, found again and again"
    )
    refresh_every: int = Field(10, ge=1, le=1_000_000, description="epochs between searches, with source=embedding")

    title: ClassVar[str] = "PHASES"
    paper: ClassVar[str] = "Progressive Hard Negative Masking: From Global Uniformity to Local Tolerance, TKDE 2023"
    summary: ClassVar[str] = "GRACE that leaves the most similar negatives out as training goes on; a re-implementation"

    @classmethod
    def preset(cls, dataset: str) -> Document:
        sections = super().preset(dataset)
        return sections | {"method": {**sections.get("method", {}), "masked": MASKED.get(dataset, 50)}}

    def space(self) -> dict[str, Document]:
        return super().space() | {"method.masked": {"kind": "choice", "values": (50, 500, 1000)}}

    def check(self, spec: Any) -> None:
        if self.full < self.start:
            raise ValueError(
                f"method.full ({self.full:g}) is before method.start ({self.start:g}); masking grows from start to full"
            )

    def state_bytes(self, size: StepSize) -> float:
        """The table; for the whole graph also its pairs in order, and as much again while they are sorted."""
        entries = size.nodes * self.most(size.nodes)
        return 4.0 * entries + (40 * entries if size.scope == "whole" else 0) + 2 * 4 * (1 << 24)

    def most(self, num_nodes: int) -> int:
        """K_m."""
        asked = self.masked if self.masked_share is None else round(self.masked_share * num_nodes)
        return min(asked, num_nodes // 2)

    def length(self, epoch: int, epochs: int, num_nodes: int) -> int:
        """K_e."""
        done = (epoch - 1) / epochs
        ramp = min(1.0, (done - self.start) / (self.full - self.start)) if self.full > self.start else 1.0
        return round(self.most(num_nodes) * ramp) if done > self.start else 0

    def build(self, learner: Learner) -> None:
        import torch

        from trainer.loss.similar_nodes import SimilarNodes, most_similar

        super().build(learner)
        n = learner.graph.num_nodes
        most = self.most(n)
        if n > MOST_NODES:
            raise InvalidInput(
                f"phases compares all pairs of nodes once, and the graph has {n} of them (at most {MOST_NODES}). "
                "Choose another method for it, such as grace."
            )
        found = self.source == "input"
        table = most_similar(learner.graph.x, most) if found else torch.zeros(n, most, dtype=torch.int32)
        learner.parts["similar"] = SimilarNodes(table, keep=not found)

    def before_epoch(self, learner: Learner, epoch: int) -> None:
        from trainer.loss.similar_nodes import most_similar

        epochs, n = learner.spec.optimiser.epochs, learner.graph.num_nodes
        if self.source == "input" or not self.length(epoch, epochs, n):
            return
        is_first = not self.length(epoch - 1, epochs, n)
        if is_first or epoch % self.refresh_every == 0:
            u, v = learner.encode_all(epoch)
            _similar(learner).refresh(most_similar(u + v, self.most(n)))

    def weights(self, learner: Learner, step: Step) -> PairWeights | None:
        from trainer.loss.infonce import PairWeights

        length = self.length(step.epoch, learner.spec.optimiser.epochs, learner.graph.num_nodes)
        nodes: Tensor = learner.team.gather(step.views.nodes)
        mask = _similar(learner).mask(nodes, length)
        return PairWeights(inter=mask, intra=mask)


def _similar(learner: Learner) -> SimilarNodes:
    return cast("SimilarNodes", learner.parts["similar"])
