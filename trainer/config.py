"""What a run is: one closed, frozen document from which everything else follows.

Unknown keys are refused, every number is bounded, and `spec_hash` names the document: two runs with equal hashes train
the same thing. Nothing here imports torch, so the API process can validate a spec without loading it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from trainer.errors import InvalidInput
from trainer.spec.base import Spec, explain
from trainer.spec.data import DataSpec
from trainer.spec.encoder import AugmentSpec, EncoderSpec
from trainer.spec.evaluation import EvaluationSpec
from trainer.spec.metric import MAX_METRIC_SCALE, MetricSpec
from trainer.spec.training import OptimiserSpec, RunSpec, SamplingSpec


class RegSpec(Spec):
    """Strength of KL(P0 ‖ P_i), in the unit that `scale` names."""

    coefficient: float = Field(3.0, ge=0, le=1e6, description="α if scale=n_minus_1, the total a if scale=one")
    scale: Literal["n_minus_1", "one"] = Field(
        "one", description="n_minus_1: total = α(N−1), the paper's unit; one: coefficient is the total a"
    )

    @model_validator(mode="after")
    def _unit_is_plausible(self) -> RegSpec:
        if self.scale == "n_minus_1" and self.coefficient > 10:
            raise ValueError(
                f"coefficient {self.coefficient:g} as α (the paper searches [0, 1]) would be multiplied by N−1; "
                "use scale=one if you mean the total KL coefficient a"
            )
        return self

    def total(self, n: int) -> float:
        """The coefficient a of KL for n nodes."""
        return self.coefficient * (n - 1) if self.scale == "n_minus_1" else self.coefficient


class ObjectiveSpec(Spec):
    """L_NML + a KL, and the turns in which M and the encoder minimise it (Algorithm 1)."""

    temperature: float = Field(
        0.5, gt=0.025, le=10, description="τ: below 0.025 float32 overflows, see design section 3"
    )
    reg: RegSpec = RegSpec()
    inner_steps: int = Field(5, ge=0, le=100, description="T_M: metric steps per epoch; ignored where M has no weights")
    inner_recompute: bool = Field(
        False, description="re-encode the views with fresh noise before each metric step, as the published code does"
    )
    detach_metric: bool = Field(True, description="encoder step treats the weights as constants (half the products)")


class TrainSpec(Spec):
    """The whole document."""

    method: Literal["nml"] = Field("nml", description="the learning method")
    preset: str | None = Field(None, max_length=100, description="the preset this came from, for the record")
    data: DataSpec = DataSpec()
    augment: AugmentSpec = AugmentSpec()
    encoder: EncoderSpec = EncoderSpec()
    metric: MetricSpec = MetricSpec()
    objective: ObjectiveSpec = ObjectiveSpec()
    optimiser: OptimiserSpec = OptimiserSpec()
    sampling: SamplingSpec = SamplingSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    run: RunSpec = RunSpec()

    @model_validator(mode="after")
    def _hops_are_layers(self) -> TrainSpec:
        hops = self.sampling.num_neighbors
        if hops is not None and len(hops) != self.encoder.layers:
            raise ValueError(
                f"sampling.num_neighbors has {len(hops)} hops for {self.encoder.layers} encoder layers; give one each"
            )
        return self

    @model_validator(mode="after")
    def _exponentials_fit(self) -> TrainSpec:
        learns = self.metric.kind in ("siamese_cos", "siamese_negcos", "two_tower")
        kappa = (MAX_METRIC_SCALE if self.metric.learn_scale else self.metric.scale) if learns else 1.0
        limit = 87 if self.run.dtype == "float32" else 700
        if 2 * (kappa + 1 / self.objective.temperature) >= limit:
            raise ValueError(
                f"temperature {self.objective.temperature:g} with a metric scale of up to {kappa:g} overflows "
                f"{self.run.dtype}: 2(κ + 1/τ) must stay below {limit}. Raise objective.temperature"
            )
        return self


def spec_hash(spec: TrainSpec) -> str:
    """Name of what a spec trains: the SHA-256 of its canonical JSON, less what changes no result.

    Tile and kept memory are left out too, so that a run that ran out of memory can go on with smaller ones. Where no
    edges are held out, nothing is said of them, nor of M's own width or a precision that are as they always were.
    """
    left_out: dict[str, Any] = {
        "preset": True, "run": _BOOK_KEEPING, "sampling": _MEMORY_ONLY, "evaluation": _LOOKED_AT_ONLY,
    }  # fmt: skip
    if not spec.data.held_out_edges:
        left_out["data"] = {"held_out_edges", "held_out_seed"}
    if spec.metric.dim is None:
        left_out["metric"] = {"dim"}
    if spec.run.precision == "float32":
        left_out["run"] = _BOOK_KEEPING | {"precision"}
    document = spec.model_dump(mode="json", exclude=left_out)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


_MEMORY_ONLY = {"tile", "keep_mb", "loader_workers"}
_LOOKED_AT_ONLY = {"watch_every"}
_BOOK_KEEPING = {
    "threads", "checkpoint_every", "checkpoint_minutes", "keep_checkpoints", "diagnose_every", "export", "track",
    "experiment", "name",
}  # fmt: skip


def parse_spec(document: Any) -> TrainSpec:
    """Validate a JSON-like document.

    Raises:
        InvalidInput: with one line per wrong field, naming it and its bound.
    """
    try:
        return TrainSpec.model_validate(document)
    except ValidationError as error:
        raise InvalidInput(explain(error)) from error
