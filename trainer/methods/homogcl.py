"""HomoGCL (Li, Wang, Xiong, Lai: HomoGCL: Rethinking Homophily in Graph Contrastive Learning, KDD 2023; methods 4.6).

    Num_i = s_ii + Σ_j A¹_ij κ_ij s'_ij,   Neg_i = Σ_{j≠i} (1−A¹_ij) s'_ij + Σ_j (1−A²_ij) s_ij
    L = mean_i −log[Num_i/(Num_i + Neg_i)] + α H,   κ_ij = cos(π_i, π_j),   π_ic = softmax_c(−‖z_i − μ_c‖²/σ)

s and s' are exponentials of cosines across and within views, A¹ and A² the edges that the views kept (row i: those that
send to i), both directions averaged. μ are k-means centroids of the clean embeddings z, found anew in each step; H is
how far neighbours disagree on their clusters. κ is needed on edges only, so no N×N array is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from pydantic import Field

from trainer.errors import InvalidInput
from trainer.methods.interface import Document, Learner, Loss, Method, Scope, Step, StepSize

if TYPE_CHECKING:
    from torch import Tensor


class Published(NamedTuple):
    """One column of the authors' settings; all others are equal for all data sets."""

    clusters: int
    epochs: int
    lr: float
    mean_neighbours: bool = False
    projection: int | None = None


PUBLISHED = {
    "cora": Published(10, 50, 1e-3, mean_neighbours=True),
    "citeseer": Published(30, 40, 1e-3),
    "pubmed": Published(10, 100, 1e-3),
    "photo": Published(10, 50, 1e-4, projection=64),
    "computers": Published(30, 100, 1e-4),
}
_OTHERS = Published(30, 100, 1e-4)  # ours: nothing is published for these
CITATION = ("cora", "citeseer", "pubmed")  # whose features the authors' library hands out with rows that sum to 1


class HomoGcl(Method):
    """Neighbours are positives as far as their clusters agree, and never negatives."""

    name: Literal["homogcl"] = "homogcl"
    temperature: float = Field(0.5, gt=0.025, le=10, description="τ: below 0.025 float32 overflows")
    clusters: int = Field(10, ge=2, le=10_000, description="number of k-means clusters")
    iterations: int = Field(20, ge=1, le=1_000, description="of k-means, in each step")
    sharpness: float = Field(
        1e-3, gt=0, le=1e6,
        description="σ: as small as published, memberships are 0 or 1 nearly everywhere (`confidence` in the events "
        "is their mean maximum) and pass hardly any gradient",
    )  # fmt: skip
    homophily: float = Field(1.0, ge=0, le=1e6, description="α: weight of H")
    mean_neighbours: bool = Field(False, description="divide the neighbours' sum by their number")
    projection: int | None = Field(
        None, ge=1, le=8_192, description="inner width of a projector that only the loss sees; none: no projector"
    )
    duplicated_positive: bool = Field(
        True, description="count the positive twice in the denominator, as the published code does"
    )

    title: ClassVar[str] = "HomoGCL"
    paper: ClassVar[str] = "HomoGCL: Rethinking Homophily in Graph Contrastive Learning, KDD 2023"
    summary: ClassVar[str] = "neighbours as positives, weighed by clusters; for graphs where neighbours are alike"
    scopes: ClassVar[tuple[Scope, ...]] = ("whole",)

    @classmethod
    def preset(cls, dataset: str) -> Document:
        values = PUBLISHED.get(dataset, _OTHERS)
        settings: Document = {"clusters": values.clusters, "mean_neighbours": values.mean_neighbours}
        if values.projection is not None:
            settings["projection"] = values.projection
        document: Document = {
            "method": settings,
            "encoder": {"hidden": 512, "dim": 256, "layers": 2, "activation": "relu"},
            "augment": {"edge_drop": [0.4, 0.4], "feature_mask": [0.1, 0.1]},
            "optimiser": {"epochs": values.epochs, "lr": values.lr},
        }
        if dataset in CITATION:
            document["data"] = {"features": "rownorm"}
        return document

    def space(self) -> dict[str, Document]:
        """The paper's table (methods 7)."""
        return super().space() | {
            "method.temperature": {"kind": "uniform", "low": 0.1, "high": 1},
            "method.clusters": {"kind": "choice", "values": (10, 30)},
            "optimiser.epochs": {"kind": "choice", "values": (50, 80, 100, 150)},
        }

    def published(self, dataset: str, num_nodes: int) -> Document:
        values = PUBLISHED.get(dataset)
        if values is None:
            return {}
        return {
            "method.temperature": 0.5, "method.clusters": values.clusters, "optimiser.epochs": values.epochs,
            "optimiser.lr": values.lr, "optimiser.weight_decay": 0.0,
        }  # fmt: skip

    # Memory

    def parameters(self, size: StepSize) -> int:
        p = self.projection
        return 0 if p is None else 2 * size.dim * p + size.dim + p

    def step_bytes(self, size: StepSize) -> float:
        """Unit rows and gradients of two views, the clean pass, memberships; on edges κ, cosines and sorted masks."""
        projected = 6 * (self.projection or 0)
        rows = size.number * size.rows * (14.0 * size.dim + projected + 6 * self.clusters)
        return rows + size.edges * (12 * size.number + 120)

    def tile_bytes(self, size: StepSize) -> float:
        """Scratch, masks of two views looked up for a tile, and tiles kept of u vᵀ and the halves of u uᵀ and v vᵀ."""
        kept = min(size.keep, 2 * size.number * size.rows * size.columns)
        return 2 * super().tile_bytes(size) + kept

    # Training

    def build(self, learner: Learner) -> None:
        from trainer.nn.mlp import Mlp

        dim, n = learner.encoder.dim, learner.graph.num_nodes
        if self.clusters > n:
            raise InvalidInput(f"method.clusters is {self.clusters}, and the graph has {n} nodes. Lower it.")
        if self.projection is not None:
            widths, draws = (dim, self.projection, dim), learner.generator("projector")
            learner.parts["projector"] = Mlp(widths, "elu", generator=draws)

    def encode(self, learner: Learner, step: Step) -> tuple[Tensor, ...]:
        return *step.views.encode(), step.views.clean()

    def loss(self, learner: Learner, step: Step) -> Loss:
        from trainer.data.features import csr
        from trainer.loss.clusters import centroids, disagreement, soft_clusters

        u, v, z = step.embeddings
        generator = learner.generator("clusters", step.epoch)
        centres = centroids(z.detach(), self.clusters, iterations=self.iterations, generator=generator)
        clusters = soft_clusters(z, centres, sharpness=self.sharpness)
        graph, n = learner.graph, learner.graph.num_nodes
        edges = csr(graph.indptr, graph.indices, z.new_ones(graph.num_edges), (n, n)).to(z.device)
        contrast, homophily = self._contrast(learner, step, u, v, clusters), disagreement(clusters, edges)
        total = contrast + self.homophily * homophily
        figures = {"loss": total, "contrast": contrast, "homophily": homophily, "confidence": clusters.amax(1).mean()}
        return Loss(total, {name: float(figure.detach()) for name, figure in figures.items()})

    def _contrast(self, learner: Learner, step: Step, u: Tensor, v: Tensor, clusters: Tensor) -> Tensor:
        import torch
        from torch.nn.functional import normalize

        from trainer.loss.infonce import PairWeights, infonce_terms
        from trainer.loss.neighbours import neighbour_sums, with_neighbours
        from trainer.loss.tile_weights import SparseWeights
        from trainer.nn.pairs import pair_dots
        from trainer.nn.sparse import row_of_entry

        if self.projection is not None:
            u, v = (learner.parts["projector"](part) for part in (u, v))
        kept = step.views.neighbours()
        unit, sums, masks = normalize(clusters), [], []
        for part, edges in zip((u, v), kept, strict=True):
            added = neighbour_sums(part, edges, pair_dots(unit, unit, edges), tau=self.temperature)
            sums.append(added / (edges.crow_indices().diff().to(u) + 0.01) if self.mean_neighbours else added)
            places = torch.stack([row_of_entry(edges.crow_indices()), edges.col_indices()])
            masks.append(SparseWeights(places, len(u)))
        own = 2.0 if self.duplicated_positive else 1.0
        terms = infonce_terms(
            u, v, tau=self.temperature, weights=PairWeights(masks[1], masks[0], own),
            back=PairWeights(masks[0], masks[1], own), tile=learner.spec.sampling.tile, memory=learner.tiles,
        )  # fmt: skip
        first = with_neighbours(terms.log_den_u, terms.positive, sums[0])
        second = with_neighbours(terms.log_den_v, terms.positive, sums[1])
        return (first + second).mean() / 2
