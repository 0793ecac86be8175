"""The negative metric network M of NML-GCL: which form it has, and how wide it is."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainer.spec.base import Spec
from trainer.spec.encoder import Activation

MetricKind = Literal["siamese_cos", "siamese_negcos", "two_tower", "pair_mlp", "closed_form", "uniform", "cosine"]
MAX_METRIC_SCALE = 10.0  # κ; weights then differ by at most exp(20), and float32 still holds at τ = 0.03
METRIC_PIECE = 8_192  # rows of which M's activations are kept at once (trainer.nn.metric); here for the estimate


class MetricSpec(Spec):
    """The negative metric network M, which gives s_ij; the weight of a negative is softmax_j(s_ij)."""

    kind: MetricKind = Field("siamese_negcos", description="form of s_ij, see methods 2.5; uniform means no M")
    hidden: int = Field(
        512, ge=1, le=8_192, description="width; pair_mlp costs N² × hidden, keep it at 64 or below there"
    )
    dim: int | None = Field(
        None, ge=1, le=8_192, description="width of M's output, the price of a metric step; none: as hidden"
    )
    hidden_layers: int = Field(1, ge=1, le=4, description="hidden layers; the published code has 1, the paper says 2")
    input: Literal["raw", "unit"] = Field("unit", description="what M sees: embeddings as they are, or unit rows")
    activation: Activation = Field("prelu", description="between M's layers")
    scale: float = Field(
        1.0, gt=0, le=MAX_METRIC_SCALE, description="κ: s lies in [-κ, κ], so weights differ by at most exp(2κ)"
    )
    learn_scale: bool = Field(True, description="learn κ, clamped to at most 10")

    @property
    def out_dim(self) -> int:
        """Width of M's output."""
        return self.dim or self.hidden
