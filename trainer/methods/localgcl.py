"""LOCAL-GCL, re-implemented (methods 4.4; Zhang et al., Localized Contrastive Learning on Graphs, arXiv 2212.04604).

    L = −(1/N) Σ_i (1/|N(i)|) Σ_{j∈N(i)} z_i·z_j/τ + (1/N) Σ_i log( (1/N) Σ_k e^{z_i·z_k/τ} ),   z of unit length

No augmentation: neighbours are the positives, and all nodes, themselves included, the negatives; an isolated node has
no first term. The idea is the paper's; neither its code nor its full text was at hand, so formula, widths and rates are
a reconstruction and no number of it can be called the paper's. The sums over k are exact by tiles, or estimated with
random features in time linear in N (trainer.loss.local).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from trainer.methods.interface import Document, Learner, Loss, Method, Scope, Step, StepSize

if TYPE_CHECKING:
    import torch
    from torch import Tensor

EXACT_UP_TO = 20_000  # nodes
_PIECE = 2_048  # rows, trainer.loss.local


class LocalGcl(Method):
    """Pull each node to its neighbours, push it from all nodes."""

    name: Literal["localgcl"] = "localgcl"
    temperature: float = Field(
        0.5, gt=0.025, le=10, description="τ: below 0.4 random features are of little use, their error grows as e^(1/τ)"
    )
    sums: Literal["auto", "exact", "random"] = Field(
        "auto",
        description="over all nodes: exact by tiles, in N² time; random: by random features, in linear time; auto: "
        f"exact up to {EXACT_UP_TO:,} nodes",
    )
    features: int = Field(4_096, ge=16, le=65_536, description="D: random features drawn; the error falls as 1/√D")
    redraw: bool = Field(True, description="draw random features anew in each step, so that errors average out")

    title: ClassVar[str] = "LOCAL-GCL (re-implementation)"
    paper: ClassVar[str] = "Localized Contrastive Learning on Graphs, arXiv 2212.04604"
    summary: ClassVar[str] = "re-implementation; neighbours as positives, no augmentation, few steps; whole graphs only"
    scopes: ClassVar[tuple[Scope, ...]] = ("whole",)

    @classmethod
    def preset(cls, dataset: str) -> Document:
        """Ours within what the paper is said to search; rates and widths were published for no data set."""
        known = dataset in ("cora", "citeseer", "pubmed", "photo", "computers", "wikics", "cs", "physics")
        dim = 1_024 if dataset in ("pubmed", "computers", "physics") else 2_048 if known else 512
        few = dataset == "citeseer"
        return {
            "encoder": {"hidden": 512, "dim": dim, "layers": 1 if few else 2, "activation": "relu"},
            "optimiser": {"epochs": 20 if few else 50, "lr": 5e-4, "weight_decay": 1e-5},
        }

    def space(self) -> dict[str, Document]:
        return super().space() | {
            "method.temperature": {"kind": "uniform", "low": 0.4, "high": 1},
            "optimiser.epochs": {"kind": "choice", "values": (20, 40, 50)},
            "encoder.dim": {"kind": "choice", "values": (1_024, 2_048)},
        }

    def check(self, spec: Any) -> None:
        limit = 87 if spec.run.dtype == "float32" else 700
        if 2 / self.temperature >= limit:
            raise ValueError(
                f"temperature {self.temperature:g} overflows {spec.run.dtype}: 2/τ must stay below {limit}. "
                "Raise method.temperature"
            )
        if self.sums == "random" and self.temperature < 0.2:
            raise ValueError(
                f"random features cannot estimate sums at temperature {self.temperature:g}: their error grows as "
                "e^(1/τ). Raise method.temperature to 0.2 or more, or set method.sums to exact"
            )
        if not spec.encoder.layers:
            raise ValueError("localgcl has nothing to train without an encoder; set encoder.layers to 1 or 2")

    def is_exact(self, nodes: int) -> bool:
        """Whether sums are by tiles."""
        return self.sums == "exact" or (self.sums == "auto" and nodes <= EXACT_UP_TO)

    # Memory

    def state_bytes(self, size: StepSize) -> float:
        """Neighbour means and their transpose; random features."""
        operator = 2 * (8 + size.number) * size.edges + 24 * size.nodes + 8 * size.edges
        return operator + (0 if self.is_exact(size.nodes) else size.number * self.features * size.dim)

    def step_bytes(self, size: StepSize) -> float:
        """Unit rows twice, neighbour means and gradients of each; with random features a piece of rows worked on."""
        rows = 6.0 * size.number * size.rows * size.dim
        return rows + (0 if self.is_exact(size.nodes) else 10.0 * size.number * min(_PIECE, size.rows) * self.features)

    def tile_bytes(self, size: StepSize) -> float:
        """trainer.loss.infonce: two buffers, and kept exponentials of one triangle."""
        if not self.is_exact(size.nodes):
            return 0
        scratch = 2.0 * size.number * min(size.tile, size.rows) ** 2
        return scratch + min(size.keep, size.number * size.rows * (size.rows + size.tile) / 2)

    # Training

    def build(self, learner: Learner) -> None:
        from trainer.loss.local import NeighbourMean

        learner.parts["neighbours"] = NeighbourMean(learner.graph.indptr, learner.graph.indices)

    def encode(self, learner: Learner, step: Step) -> tuple[Tensor, ...]:
        return (step.views.clean(),)

    def loss(self, learner: Learner, step: Step) -> Loss:
        from torch.nn.functional import normalize

        from trainer.loss.infonce import intra_log_sums
        from trainer.loss.local import random_log_sums

        (z,) = step.embeddings
        unit = normalize(z)
        near = (unit * learner.parts["neighbours"](unit)).sum() / self.temperature / len(z)
        if self.is_exact(len(z)):
            tile = learner.spec.sampling.tile
            sums = intra_log_sums(z, tau=self.temperature, tile=tile, memory=learner.tiles, team=learner.team)
        else:
            sums = random_log_sums(z, self._frequencies(learner, step, z), tau=self.temperature)
        apart = sums.mean() - math.log(len(z))
        loss = apart - near
        return Loss(loss, {"loss": float(loss.detach()), "near": float(near.detach()), "apart": float(apart.detach())})

    def _frequencies(self, learner: Learner, step: Step, z: Tensor) -> torch.Tensor:
        from trainer.loss.local import draw_frequencies

        drawn = learner.generator("frequencies", step.number if self.redraw else 0)
        return draw_frequencies(self.features, z.shape[1], self.temperature, z, drawn)
