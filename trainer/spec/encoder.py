"""The sections `augment` and `encoder`: how views are drawn, and what turns them into embeddings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainer.spec.base import Probability, Spec

Activation = Literal["relu", "prelu", "elu", "rrelu_mean", "rrelu_random"]


class AugmentSpec(Spec):
    """How the two views are drawn; a pair holds the values for view 1 and view 2."""

    edge_drop: tuple[Probability, Probability] = Field((0.4, 0.4), description="share of stored directed edges dropped")
    feature_mask: tuple[Probability, Probability] = Field((0.1, 0.1), description="share of feature columns zeroed")
    undirected: bool = Field(False, description="drop both directions of an edge together (published code does not)")
    adaptive: Literal["none", "degree", "pagerank", "eigenvector"] = Field(
        "none",
        description="a centrality of nodes: edges to unimportant nodes and columns that only those have are dropped "
        "sooner, the mean share staying about the same (GCA); none: all alike",
    )

    @model_validator(mode="after")
    def _directions_may_differ(self) -> AugmentSpec:
        if self.undirected and self.adaptive != "none":
            raise ValueError(
                "augment.adaptive drops an edge by its target, so its directions differ; set undirected to false"
            )
        return self


class EncoderSpec(Spec):
    """GCN: propagate, transform, normalise, activate. Memory: about 4 N × hidden floats per view and layer."""

    hidden: int = Field(512, ge=1, le=8_192, description="width of the inner layers")
    dim: int = Field(512, ge=1, le=8_192, description="width of the embedding")
    layers: int = Field(2, ge=0, le=8, description="number of GCN layers; 0: the features themselves")
    activation: Activation = Field(
        "prelu", description="between layers; rrelu_random draws slopes while training, rrelu_mean uses their mean"
    )
    last_activation: Activation | None = Field(None, description="after the last layer; none: none")
    norm: Literal["none", "batch", "layer"] = Field("none", description="normalisation before each activation")
    batch_momentum: float = Field(
        0.01, gt=0, le=1, description="share of a new batch in the running statistics, with norm=batch"
    )
    diffusion: Literal["none", "ppr"] = Field(
        "none",
        description="ppr: beside it a second encoder over personalised PageRank instead of the edges; the embedding is "
        "the sum of both. Needs the whole graph in memory",
    )
    smoothing: int = Field(
        0, ge=0, le=16, description="k: export Âᵏz instead of z; changes no training, helps where neighbours are alike"
    )
    powers: tuple[Annotated[float, Field(ge=-1e6, le=1e6)], ...] = Field(
        (), max_length=16,
        description="w₀, w₁, …: export Σ wₖ Âᵏz, rows of each power at unit length; needs the whole graph in memory",
    )  # fmt: skip

    @model_validator(mode="after")
    def _one_readout(self) -> EncoderSpec:
        if self.powers and self.smoothing:
            raise ValueError("smoothing and powers are two ways of exporting; set one of them")
        if self.powers and not any(self.powers):
            raise ValueError("powers are all 0, so nothing would be exported; give at least one weight")
        return self

    @property
    def at_once(self) -> bool:
        """Whether embeddings can only be made with the whole graph in memory."""
        return self.diffusion == "ppr" or bool(self.powers)

    def widths(self, num_features: int) -> list[int]:
        """Of the features, and of what each layer makes of them."""
        return [num_features, *[self.hidden] * (self.layers - 1), self.dim][: self.layers + 1]
