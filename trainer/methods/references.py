"""References that cost nothing: what an embedding is worth without training. Every table needs these rows.

features    the raw features X
sgc         ÂᵏX, features smoothed over the graph (Wu et al., Simplifying Graph Convolutional Networks, ICML 2019)
untrained   the encoder with its random first weights
fastrp      Σ wₖ ÂᵏXP, features in a very sparse random projection, powers of the graph summed (Chen et al., CIKM 2019)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trainer.methods.interface import Document, Learner, Loss, Method, Scope, Step, StepSize

if TYPE_CHECKING:
    from torch import Tensor


class Reference(Method):
    """One epoch in which nothing is learned, so that a reference is a run like any other."""

    learns: ClassVar[bool] = False
    scopes: ClassVar[tuple[Scope, ...]] = ("whole",)

    def space(self) -> dict[str, Document]:
        return {}

    def check(self, spec: Any) -> None:
        if spec.optimiser.epochs != 1:
            raise ValueError(f"{self.name} learns nothing; set optimiser.epochs to 1")

    def step_bytes(self, size: StepSize) -> float:
        return 0

    def tile_bytes(self, size: StepSize) -> float:
        return 0

    def build(self, learner: Learner) -> None:
        learner.encoder.requires_grad_(False)

    def encode(self, learner: Learner, step: Step) -> tuple[Tensor, ...]:
        return ()

    def loss(self, learner: Learner, step: Step) -> Loss:
        import torch

        return Loss(torch.zeros(()), {"loss": 0.0})


class Untrained(Reference):
    """The encoder as it is drawn: what structure and features give a random GCN."""

    name: Literal["untrained"] = "untrained"

    title: ClassVar[str] = "untrained encoder"
    paper: ClassVar[str] = "a reference of ours"
    summary: ClassVar[str] = "random weights; shows what training adds"

    @classmethod
    def preset(cls, dataset: str) -> Document:
        return {"optimiser": {"epochs": 1}}


class Features(Reference):
    """The raw features, as they are."""

    name: Literal["features"] = "features"

    title: ClassVar[str] = "raw features"
    paper: ClassVar[str] = "a reference of ours"
    summary: ClassVar[str] = "no graph, no training"

    @classmethod
    def preset(cls, dataset: str) -> Document:
        return {"optimiser": {"epochs": 1}, "encoder": {"layers": 0}}

    def check(self, spec: Any) -> None:
        super().check(spec)
        if spec.encoder.layers:
            raise ValueError(f"{self.name} has no encoder; set encoder.layers to 0")


class Sgc(Features):
    """Features smoothed over the graph: encoder.smoothing is k."""

    name: Literal["sgc"] = "sgc"  # type: ignore[assignment]

    title: ClassVar[str] = "smoothed features ÂᵏX"
    paper: ClassVar[str] = "Simplifying Graph Convolutional Networks, ICML 2019"
    summary: ClassVar[str] = "no training; hard to beat on homophilous graphs"

    @classmethod
    def preset(cls, dataset: str) -> Document:
        return {"optimiser": {"epochs": 1}, "encoder": {"layers": 0, "smoothing": 2}}


class FastRp(Reference):
    """Chen et al., Fast and Accurate Network Embeddings via Very Sparse Random Projection, CIKM 2019.

        Z = Σ_k w_k unit(Âᵏ X P),   P_ij = √3 · {+1 with probability 1/6, 0 with 2/3, −1 with 1/6},   k = 1, 2, …

    The paper projects nodes, X = I. Here features are projected, as Neo4j's Graph Data Science does with propertyRatio
    1, so that the weights are an encoder's; a graph whose features are one column per node has the paper's embedding.
    Weights 0, 1, 1 and unit rows are Neo4j's too; Â is that of every encoder here (self loops, symmetric) where the
    paper averages over neighbours. A layer with frozen weights P makes the first power, `encoder.powers` are the w.
    """

    name: Literal["fastrp"] = "fastrp"

    title: ClassVar[str] = "FastRP on features"
    paper: ClassVar[str] = "Fast and Accurate Network Embeddings via Very Sparse Random Projection, CIKM 2019"
    summary: ClassVar[str] = "no training; random projection and powers of the graph, in seconds"

    @classmethod
    def preset(cls, dataset: str) -> Document:
        return {
            "optimiser": {"epochs": 1},
            "encoder": {"layers": 1, "dim": 512, "last_activation": None, "powers": [0.0, 1.0, 1.0]},
        }

    def check(self, spec: Any) -> None:
        super().check(spec)
        encoder = spec.encoder
        if encoder.layers != 1 or encoder.last_activation is not None or not encoder.powers:
            raise ValueError(
                "fastrp is one linear layer and its powers: set encoder.layers to 1, encoder.last_activation to null "
                "and encoder.powers to the weights, [0, 1, 1] for example"
            )

    def build(self, learner: Learner) -> None:
        import torch

        super().build(learner)
        weight = learner.encoder.weights[0]
        draws = torch.randint(6, weight.shape, generator=learner.generator("projection"))
        weight.data = ((draws == 0).to(weight) - (draws == 1).to(weight)) * 3**0.5
