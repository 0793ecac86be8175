"""From a document that a client sent to a job in the queue: presets, rules, data set, memory, and only then the store.

All of it is checked here, while the client waits, so that what is queued can run: a wrong field is named, a missing
data set too, and what would not fit in memory is refused with the number.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from service.api.cpu_bounds import check_job_cpus, check_sweep_cpus
from service.api.problems import MAX_ERRORS, FieldError, Problem, field_errors, invalid, not_valid, problem_of
from service.datasets.resolve import Resolved, resolve
from service.settings import Settings
from service.store import Store
from service.store.records import NewJob
from trainer.config import TrainSpec, spec_hash
from trainer.errors import InvalidInput, OutOfMemory
from trainer.planning.cpus import usable_cpus
from trainer.planning.plan import Plan, make_plan, size
from trainer.planning.shape import GraphShape
from trainer.presets import PRESETS, complete
from tuner.config import SweepSpec, sweep_hash, trial_spec, with_open_space

SMALLEST: dict[str, Any] = {"data": {"name": "digits"}}
ESTIMATED = ("sampling", "spec_hash", "reason", "memory", "limit")  # of a plan: what one needs who has yet to ask
MOST_VALUES = 10_000  # that a sweep's space and starts may list; each is checked against the training spec
_FILES = "a client cannot name files of the service; upload them with POST /v1/datasets and give that data set's name"
_FOR_COMMAND_LINES = re.compile(r"(?:^|(?<=[.;:] ))[^.;:]*(?:`nml |--)[^.]*\.(?: |$)")

SpecType = TypeVar("SpecType", bound=BaseModel)


@dataclass(frozen=True)
class Request:
    """What was sent, beside the document."""

    owner: str | None
    name: str | None = None
    priority: int = 0
    deadline: float | None = None  # seconds since 1970
    metadata: dict[str, str] = field(default_factory=dict)


def prepare_job(document: dict[str, Any], request: Request, store: Store, settings: Settings) -> NewJob:
    """The training job that a document asks for. Reads the store, and headers on disk; computes for milliseconds.

    Raises:
        Problem: 422, with the fields to change.
        Unavailable: the store does not answer.
    """
    spec, found = _train_spec(document, store, settings)
    spec = _named(spec, request.name)
    need = _planned(spec, found.shape, settings.memory_bytes, "").memory.total * spec.run.workers
    return NewJob(
        kind="train", spec=spec.model_dump(mode="json"), spec_hash=spec_hash(spec), dataset=found.ref,
        owner=request.owner, name=spec.run.name, priority=request.priority, deadline=request.deadline,
        memory_bytes=need, metadata=request.metadata, is_uploaded=found.is_uploaded,
    )  # fmt: skip


def estimate_job(document: dict[str, Any], store: Store, settings: Settings) -> dict[str, Any]:
    """What the training job that a document asks for would need, part by part, as `nml estimate` says it.

    Raises:
        Problem: 422, with the fields to change; also if it would not fit.
        Unavailable: the store does not answer.
    """
    spec, found = _train_spec(document, store, settings)
    plan = _planned(spec, found.shape, settings.memory_bytes, "")
    about = {"data": found.ref, "workers": spec.run.workers, "shape": asdict(found.shape)}
    return about | {name: value for name, value in plan.document().items() if name in ESTIMATED}


def _train_spec(document: dict[str, Any], store: Store, settings: Settings) -> tuple[TrainSpec, Resolved]:
    """The spec, complete, with the data set as it is now."""
    if not document:
        why = f"does not say what to train; the smallest spec that works is {json.dumps(SMALLEST)}"
        raise Problem(422, f"body: {why}", errors=[FieldError("body", why)], extra={"example": SMALLEST})
    spec = validated(TrainSpec, _completed(document))
    _refuse_files(spec, "data")
    check_job_cpus(spec, settings)
    found = resolve(spec.data, store, settings)
    return spec.model_copy(update={"data": found.data}), found


def prepare_sweep(document: dict[str, Any], request: Request, store: Store, settings: Settings) -> NewJob:
    """The sweep that a document asks for; as `prepare_job`."""
    base = document.get("base")
    _check_extent(document)
    spec = validated(SweepSpec, _with_space(document, base) if isinstance(base, dict) else document)
    _refuse_files(spec.base, "base.data")
    try:
        found = resolve(trial_spec(spec, {}).data, store, settings)
    except InvalidInput as error:
        raise _below("base.", error) from error
    if spec.objective == "val_accuracy" and found.classes < 2:
        raise invalid("objective", "val_accuracy needs a data set with labels; use link_auc or i_nml, which need none")
    data = found.data.model_copy(update={"held_out_edges": spec.base.data.held_out_edges})
    spec = spec.model_copy(update={"base": _named(spec.base.model_copy(update={"data": data}), request.name)})
    need = _sweep_memory(spec, found.shape, settings)
    check_sweep_cpus(spec, settings)
    return NewJob(
        kind="sweep", spec=spec.model_dump(mode="json"), spec_hash=sweep_hash(spec), dataset=found.ref,
        owner=request.owner, name=spec.base.run.name, priority=request.priority, deadline=request.deadline,
        memory_bytes=need, metadata=request.metadata, is_uploaded=found.is_uploaded,
    )  # fmt: skip


def fingerprint(kind: str, document: dict[str, Any], parameters: Mapping[str, Any]) -> str:
    """Hash of a request, by which an Idempotency-Key recognises a repeat; ignores the order of keys."""
    text = json.dumps([kind, document, dict(parameters)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _completed(document: dict[str, Any], place: str = "") -> dict[str, Any]:
    """What the document leaves out as its preset has it; with `"preset": null` as the schema has it."""
    preset = document.get("preset")
    if isinstance(preset, str) and preset not in PRESETS:
        raise invalid(f"{place}preset", f"unknown preset (expected one of {', '.join(PRESETS)}, or null)")
    try:
        return complete(document)
    except InvalidInput as error:
        raise invalid(f"{place}preset", str(error).replace("Use --preset nml.", "Use nml.")) from error


def _with_space(document: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """The sweep with its base completed; what the sender fixed in it is not searched unless `space` says so."""
    try:
        return with_open_space(document | {"base": _completed(base, "base.")}, base)
    except InvalidInput as error:
        raise invalid("space", str(error)) from error


def validated(kind: type[SpecType], document: dict[str, Any]) -> SpecType:
    """Raises Problem 422 with the fields that are wrong."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        count, details = error.error_count(), error.errors(include_url=False, include_input=False)
        raise not_valid(field_errors(details[:MAX_ERRORS]), count=count) from None
    except (ArithmeticError, RecursionError) as error:  # numbers so large that even comparing them fails
        raise invalid("body", "contains a number that is too large for any field") from error


def _refuse_files(spec: TrainSpec, place: str) -> None:
    if spec.data.name == "files":
        raise invalid(f"{place}.name", _FILES)


def _named(spec: TrainSpec, name: str | None) -> TrainSpec:
    """With the request's name as the run's, for lists and for MLflow alike."""
    return spec if name is None else spec.model_copy(update={"run": spec.run.model_copy(update={"name": name})})


def _check_extent(document: dict[str, Any]) -> None:
    """Refuse a space that would keep us checking for seconds."""
    space, starts = document.get("space"), document.get("starts")
    listed = (
        [item.get("values") for item in space.values() if isinstance(item, dict)] if isinstance(space, dict) else []
    )
    count = sum(len(values) for values in listed if isinstance(values, list))
    if count > MOST_VALUES:
        raise invalid("space", f"lists {count} values; the service takes at most {MOST_VALUES}. Use ranges")
    if isinstance(starts, list) and len(starts) + count > MOST_VALUES:
        raise invalid("starts", f"with the space's values more than {MOST_VALUES}; list fewer")


def _planned(spec: TrainSpec, shape: GraphShape, limit: int, place: str) -> Plan:
    """How the run will be done, and the bytes that one of its processes will need.

    Raises:
        Problem: 422, it cannot be done within `limit`.
    """
    try:
        return make_plan(spec, shape, limit)
    except OutOfMemory as error:
        message = _FOR_COMMAND_LINES.sub("", str(error)).strip()
        raise Problem(422, message, errors=[FieldError(f"{place}sampling", message)], kind="memory") from None


def _sweep_memory(spec: SweepSpec, shape: GraphShape, settings: Settings) -> int:
    """Bytes of as many trials as are to run side by side; where that is left open, of as many as fit.

    On a cluster, of one: `memory_limit` is then a worker's, and how many share it each worker knows by itself.
    """
    trial = trial_spec(spec, {})
    most = 1 if settings.runner == "ray" else spec.concurrency or max(1, usable_cpus() // spec.resources.cpus)
    own = spec.resources.memory_gb
    for trials in (most,) if spec.concurrency else range(most, 0, -1):
        share = settings.memory_bytes // trials
        limit = share if own is None else int(own * 2**30)
        try:
            return trials * _planned(trial, shape, min(share, limit), "base.").memory.total
        except Problem as problem:
            if trials > 1 and not spec.concurrency:
                continue
            if trials == 1 and limit >= share:
                raise
            lead = f"{trials} trial{'s' * (trials > 1)} at a time have {size(min(share, limit))} of memory each"
            cure = "lower concurrency" if limit >= share else "raise resources.memory_gb or lower concurrency"
            message = f"{lead}, which is not enough: {problem.detail} Or {cure}."
            field = "concurrency" if limit >= share else "resources.memory_gb"
            raise Problem(422, message, errors=[FieldError(field, message)], kind="memory") from None
    raise AssertionError("there is at least one number to try")


def _below(place: str, error: InvalidInput) -> Problem:
    """The same refusal, of a part of the document."""
    return not_valid([FieldError(place + item.field, item.message) for item in problem_of(error).errors])
