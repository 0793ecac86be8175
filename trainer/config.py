"""What a run is: one closed, frozen document from which everything else follows.

Unknown keys are refused, every number is bounded, and `spec_hash` names the document: two runs with equal hashes train
the same thing. Nothing here imports torch, so the API process can validate a spec without loading it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from trainer.errors import InvalidInput
from trainer.files.documents import merged, set_value
from trainer.methods import BY_NAME, METHODS
from trainer.methods.interface import Method, Scope
from trainer.methods.nml import NegativeMetricLearning
from trainer.spec.base import Spec, explain
from trainer.spec.data import DataSpec
from trainer.spec.encoder import AugmentSpec, EncoderSpec
from trainer.spec.evaluation import EvaluationSpec
from trainer.spec.training import OptimiserSpec, RunSpec, SamplingSpec


def _named(method: Any) -> Any:
    """`"grace"` stands for `{"name": "grace"}`, and no name for nml. Errors say which names or fields there are."""
    if isinstance(method, Method):
        return method
    document = {"name": method} if isinstance(method, str) else method
    if not isinstance(document, dict):
        raise PydanticCustomError("method_type", "should be the name of a method, or an object with its settings")
    document = {"name": "nml", **document}
    name = document["name"]
    known = BY_NAME.get(name) if isinstance(name, str) else None
    if known is None:
        names = ", ".join(BY_NAME)
        raise PydanticCustomError("unknown_method", "unknown method (expected one of {names})", {"names": names})
    fields = [field for field in known.model_fields if field != "name"]
    has = f"has {', '.join(fields)}" if fields else "has no settings"
    unknown = PydanticCustomError("unknown_setting", "unknown key; {name} {has}", {"name": name, "has": has})
    wrong = [
        InitErrorDetails(type=unknown, loc=(name, key), input=None) for key in document if key not in known.model_fields
    ]
    if wrong:
        raise ValidationError.from_exception_data("method", wrong)
    return document


if TYPE_CHECKING:
    MethodSpec = Method
else:
    _ONE_OF = Annotated[Union[METHODS], Field(discriminator="name")]  # noqa: UP007
    MethodSpec = Annotated[_ONE_OF, BeforeValidator(_named, json_schema_input_type=Literal[tuple(BY_NAME)] | _ONE_OF)]


class TrainSpec(Spec):
    """The whole document."""

    method: MethodSpec = Field(
        default_factory=NegativeMetricLearning,
        description="the learning method and its own settings; a name alone takes its defaults, see `nml methods`",
    )
    preset: str | None = Field(None, max_length=100, description="the preset this came from, for the record")
    data: DataSpec = DataSpec()
    augment: AugmentSpec = AugmentSpec()
    encoder: EncoderSpec = EncoderSpec()
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

    @model_validator(mode="before")
    @classmethod
    def _layout_is_current(cls, document: Any) -> Any:
        moved = [name for name in ("objective", "metric") if isinstance(document, dict) and name in document]
        if moved:
            raise ValueError(
                f"{moved[0]}: there is no such section any more; settings of a method stand under `method`, "
                f"{'its metric under `method.metric`' if moved[0] == 'metric' else 'as in method.temperature'}. "
                "A run directory of an earlier release cannot go on; train it again"
            )
        return document

    @model_validator(mode="after")
    def _method_can_do_it(self) -> TrainSpec:
        method, sampling = self.method, self.sampling
        asked: str | None = sampling.negatives
        if asked == "graph":
            asked = None if sampling.batch_size is None else "cached"
        elif asked is None and sampling.batch_size is not None:
            asked = "batch"
        if asked is not None and asked not in method.scopes:
            what = "batches with cached gradients (sampling.negatives=graph with a batch_size)"
            what = what if asked == "cached" else f"sampling.negatives={asked}"
            raise ValueError(
                f"{method.name} cannot be trained with {what}; it knows: {', '.join(method.scopes)}. "
                "Leave sampling.negatives and sampling.batch_size out, or choose another method"
            )
        if self.run.workers > 1 and not method.teams:
            raise ValueError(f"{method.name} trains in one process; set run.workers to 1")
        if self.encoder.norm == "batch" and (asked == "cached" or self.run.workers > 1):
            raise ValueError(
                "encoder.norm=batch needs all rows of a step in one pass, so neither cached gradients nor several "
                "workers can have it. Set encoder.norm to layer or none"
            )
        if self.encoder.diffusion == "ppr" and (asked not in (None, "whole") or self.run.workers > 1):
            raise ValueError(
                "encoder.diffusion=ppr needs the whole graph in one process: leave sampling.negatives and "
                "sampling.batch_size out and set run.workers to 1"
            )
        if self.encoder.powers and asked not in (None, "whole"):
            raise ValueError(
                "encoder.powers needs the whole graph: leave sampling.negatives and sampling.batch_size out"
            )
        method.check(self)
        return self

    def with_(self, changes: Mapping[str, Any] | None = None, /, **sections: Any) -> TrainSpec:
        """The same spec with some fields changed; checked like any other.

            spec.with_(optimiser={"epochs": 50}, method={"temperature": 0.4})
            spec.with_({"optimiser.epochs": 50, "method.temperature": 0.4})
            spec.with_(data={"name": "files", "files": {"npz": "graph.npz"}})    a paper's settings on own data

        Another method, and another data set, come with the defaults of their own settings.

        Raises:
            InvalidInput: with one line per wrong field.
        """
        asked: dict[str, Any] = {}
        for path, value in [*(changes or {}).items(), *sections.items()]:
            change: dict[str, Any] = {}
            set_value(change, path, {"name": value} if path == "method" and isinstance(value, str) else value)
            asked = merged(asked, change)
        document = self.model_dump(mode="json")
        for section, kept in (("method", ()), ("data", _KEPT_OF_DATA)):
            there, new = document[section], asked.get(section)
            if isinstance(new, dict) and new.get("name", there["name"]) != there["name"]:
                document[section] = {key: there[key] for key in kept}
                document["preset"] = None if section == "method" else document["preset"]
        if _other_kind_of_files(document["data"].get("files"), asked.get("data")):
            document["data"]["files"] = None
        return parse_spec(merged(document, asked))

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """What the method and the encoder can do together, for the planner."""
        if self.encoder.at_once:
            return ("whole",)
        return tuple(scope for scope in self.method.scopes if scope != "cached" or self.encoder.norm != "batch")


def _other_kind_of_files(there: Any, data: Any) -> bool:
    """Whether tables are asked for instead of an npz, or an npz instead of tables."""
    new = data.get("files") if isinstance(data, dict) else None
    if not isinstance(there, dict) or not isinstance(new, dict):
        return False
    tables = any(new.get(key) is not None for key in ("nodes", "edges"))
    return tables if there.get("npz") is not None else not tables and new.get("npz") is not None


_KEPT_OF_DATA = ("features", "held_out_edges", "held_out_seed")  # when another data set is chosen


def spec_hash(spec: TrainSpec) -> str:
    """Name of what a spec trains: the SHA-256 of its canonical JSON, less what changes no result.

    Tile and kept memory are left out too, so that a run that ran out of memory can go on with smaller ones.
    """
    left_out: dict[str, Any] = {
        "preset": True, "run": _BOOK_KEEPING, "sampling": _MEMORY_ONLY, "evaluation": _LOOKED_AT_ONLY,
    }  # fmt: skip
    if not spec.data.held_out_edges:
        left_out["data"] = {"held_out_seed"}
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
