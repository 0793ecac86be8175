"""What a sweep is: one closed, frozen document, like the training spec that it varies (trainer.config).

Nothing here imports torch, Ray or Optuna, so the API process can validate a sweep without loading them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from trainer.config import TrainSpec
from trainer.errors import InvalidInput
from trainer.files.documents import value_at
from trainer.spec.base import Spec, explain
from tuner.space import Choice, Dimension, Grid, Value, changed, check_dimension, default_space, nearest, open_space

Objective = Literal["val_accuracy", "link_auc", "i_nml"]


class SchedulerSpec(Spec):
    """Which trials are cut short: asynchronous successive halving on epochs, or none."""

    kind: Literal["asha", "none"] = Field("asha", description="asha: a trial worse than the best 1/reduction stops")
    grace_epochs: int | None = Field(
        None, ge=1, le=1_000_000, description="epochs that every trial gets; none: 3/8 of the longest trial"
    )
    reduction: float = Field(3.0, gt=1, le=10, description="at a rung 1/reduction go on; rungs lie this factor apart")


class ResourcesSpec(Spec):
    """What Ray sets aside for each trial."""

    cpus: int = Field(1, ge=1, le=1_024, description="CPUs, and threads that a trial computes with")
    gpus: float = Field(0, ge=0, le=64, description="GPUs; a part of one lets several trials share it")
    memory_gb: float | None = Field(
        None,
        gt=0,
        le=100_000,
        description="memory to plan with and ask Ray for; none: an equal part of what is there",
    )


class SweepSpec(Spec):
    """The whole document."""

    base: TrainSpec = Field(description="the training spec that trials vary; its run.track and run.experiment hold")
    space: dict[str, Dimension] | None = Field(
        None, max_length=50,
        description="fields of the training spec by dotted path, and what they may be; none: the defaults for base, "
        "less the fields that base itself gives a value",
    )  # fmt: skip
    starts: tuple[dict[str, Value], ...] | None = Field(
        None, max_length=1_000,
        description="settings tried first, by dotted path; what one leaves out is the base's. none: the base itself "
        "and the paper's settings for its data set",
    )  # fmt: skip
    objective: Objective = Field(
        "val_accuracy",
        description="val_accuracy: of the linear probe, needs labels; link_auc: of held-out edges, and i_nml: a bound "
        "on mutual information, need none. All are maximised",
    )
    algorithm: Literal["tpe", "random", "grid"] = Field("tpe", description="how trials are chosen; tpe is Optuna's")
    scheduler: SchedulerSpec = SchedulerSpec()
    trials: int = Field(30, ge=1, le=100_000, description="trials in all, starts included; grid: at most")
    seeds: int = Field(
        1, ge=1, le=100, description="runs per trial; the first decides on stopping early, their mean is the value"
    )
    seed: int = Field(0, ge=0, lt=2**31, description="seed of the search; runs have base.run.seed and those after it")
    held_out_edges: float | None = Field(
        None, ge=0, le=0.5, description="share of edges no trial sees; none: 0.1 for link_auc, else as the base has it"
    )
    report_every: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="epochs between looks at the objective; none: 1/8 of the longest trial",
    )
    concurrency: int | None = Field(
        None, ge=1, le=10_000, description="trials at a time; none: as many as the CPUs and GPUs allow"
    )
    resources: ResourcesSpec = ResourcesSpec()
    budget_minutes: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="wall-clock time of the sweep; interruptions, and starting until a trial runs, are not counted; "
        "then trials are ended",
    )
    silence_minutes: float = Field(
        60,
        gt=0,
        le=1e6,
        description="a trial that reports nothing for this long is ended, as failed; its process has at least ten "
        "minutes to start",
    )
    retries: int = Field(
        1, ge=0, le=100, description="how often a trial whose process died is tried again, from its checkpoint"
    )

    @model_validator(mode="after")
    def _space_fits(self) -> SweepSpec:
        space = self.dimensions()
        for path, dimension in space.items():
            check_dimension(self.base, path, dimension)
            within = [other for other in space if other.startswith(f"{path}.")]
            if within:
                raise ValueError(f"space.{within[0]}: is part of {path}, which is in the space too; leave one out")
        if self.algorithm == "grid":
            ranges = [path for path, dimension in space.items() if not isinstance(dimension, Choice | Grid)]
            if ranges:
                raise ValueError(f"space.{ranges[0]}: algorithm=grid needs values; make it a grid or a choice")
        return self

    @model_validator(mode="after")
    def _starts_fit(self) -> SweepSpec:
        for number, start in enumerate(self.starts or ()):
            unknown = [path for path in start if path not in self.dimensions()]
            if unknown:
                raise ValueError(f"starts.{number}.{unknown[0]}: is not in the space; add it there or set it in base")
            try:
                changed(self.base, start)
            except InvalidInput as error:
                raise ValueError(f"starts.{number}: {error}") from error
        return self

    @model_validator(mode="after")
    def _objective_can_be_had(self) -> SweepSpec:
        if self.objective == "link_auc" and self.held_out == 0:
            raise ValueError("objective link_auc needs edges to judge by; set held_out_edges above 0")
        if self.objective == "i_nml" and self.base.method.name != "nml":
            raise ValueError(f"objective i_nml is known to method nml only, not to {self.base.method.name}")
        if not self.base.method.learns:
            raise ValueError(f"base.method: {self.base.method.name} learns nothing, so there is nothing to search")
        if self.base.run.workers > 1:
            raise ValueError("base.run.workers: a trial is one process; set it to 1 and use concurrency")
        return self

    def dimensions(self) -> dict[str, Dimension]:
        """The search space, that of the spec or the default one."""
        return default_space(self.base) if self.space is None else self.space

    @property
    def held_out(self) -> float:
        """Share of edges that trials do not see."""
        if self.held_out_edges is not None:
            return self.held_out_edges
        return self.base.data.held_out_edges or (0.1 if self.objective == "link_auc" else 0.0)

    @property
    def max_epochs(self) -> int:
        """Epochs of the longest trial."""
        settings: list[dict[str, Value]] = list(self.starts or ())  # default starts stay within the space
        for path in ("optimiser", "optimiser.epochs"):
            dimension = self.dimensions().get(path)
            if dimension is not None:
                values = dimension.values if isinstance(dimension, Choice | Grid) else (dimension.high,)
                settings += [{path: value} for value in values]
        return max(changed(self.base, changes).optimiser.epochs for changes in settings or [{}])

    @property
    def every(self) -> int:
        """Epochs between looks at the objective."""
        return self.report_every or max(1, self.max_epochs // 8)

    @property
    def grace(self) -> int:
        """Epochs before the first rung. Earlier, settings that learn slowly are stopped although they end best."""
        return min(self.scheduler.grace_epochs or max(1, 3 * (self.max_epochs // 8)), self.max_epochs)


def default_starts(spec: SweepSpec, num_nodes: int) -> list[dict[str, Value]]:
    """Known-good settings to try first: the base's own, then the paper's for its data set in the base's units.

    A number beyond the space's range becomes the nearest within; settings equal to earlier ones are left out, and so
    are those that cannot be trained.
    """
    base, space = spec.base, spec.dimensions()
    starts = [{path: nearest(space[path], value_at(base.model_dump(mode="json"), path)) for path in space}]
    published = base.method.published(base.data.name, num_nodes)
    if published:
        known = {path: nearest(space[path], value) for path, value in published.items() if path in space}
        starts.append(starts[0] | known)
    return [start for at, start in enumerate(starts) if start not in starts[:at] and _fits(base, start)]


def _fits(base: TrainSpec, changes: dict[str, Value]) -> bool:
    try:
        changed(base, changes)
    except InvalidInput:
        return False
    return True


def trial_spec(spec: SweepSpec, changes: dict[str, Value], run: int = 0) -> TrainSpec:
    """What run number `run` of a trial trains: the base with changes, watched and checkpointed but not exported."""
    own = {
        "data.held_out_edges": spec.held_out, "evaluation.watch_every": spec.every, "evaluation.figures": False,
        "evaluation.split_seed": split_seed(spec), "run.seed": spec.base.run.seed + run, "run.export": False,
        "run.track": False, "run.threads": spec.resources.cpus, "run.checkpoint_every": spec.every,
        "run.keep_checkpoints": 1, "run.diagnose_every": spec.every,
    }  # fmt: skip
    return changed(spec.base, {**changes, **own})


def best_spec(spec: SweepSpec, changes: dict[str, Value]) -> TrainSpec:
    """A trial's settings as a spec for `nml train`: on the base's edges, with export, and on the split that chose them.

    The split stays fixed whatever the seed, so that no node whose label helped to choose is ever a test node.
    """
    return changed(spec.base, {**changes, "evaluation.split_seed": split_seed(spec)})


def split_seed(spec: SweepSpec) -> int:
    """Seed of the one split that all trials share."""
    own = spec.base.evaluation.split_seed
    return spec.base.run.seed if own is None else own


def sweep_hash(spec: SweepSpec) -> str:
    """Name of what a sweep searches: equal for sweeps that differ only in where and how long they may run."""
    document = spec.model_copy(update={"space": spec.dimensions()}).model_dump(mode="json", exclude=_WHERE)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


_WHERE = {"concurrency", "resources", "budget_minutes", "silence_minutes", "retries"}


def with_open_space(document: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A sweep document that names no space, with the default one less what `given` fixes; others stay as they are.

    Args:
        document: its base is complete. One that is no training spec stays too: validation says what is wrong with it.
        given: the base as it was asked for, before its preset filled in the rest.

    Raises:
        InvalidInput: nothing is left to search.
    """
    if document.get("space") is not None:
        return document
    try:
        base = TrainSpec.model_validate(document.get("base"))
    except (ValidationError, ArithmeticError, RecursionError):
        return document
    if not base.method.learns:
        return document
    space = open_space(base, given)
    return {**document, "space": {path: dimension.model_dump(mode="json") for path, dimension in space.items()}}


def parse_sweep(document: Any) -> SweepSpec:
    """Validate a JSON-like document.

    Raises:
        InvalidInput: with one line per wrong field, naming it and its bound.
    """
    try:
        return SweepSpec.model_validate(document)
    except ValidationError as error:
        raise InvalidInput(explain(error)) from error
