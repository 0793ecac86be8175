"""What a sweep's command line asks for: one sweep spec from a file or from options, and the small one of --smoke."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from service.cli.spec_options import Asked, assemble, completed
from trainer.errors import InvalidInput
from trainer.files.documents import apply_overrides, read_document, set_value, value_at
from trainer.presets import merged
from tuner.config import SweepSpec, parse_sweep, with_open_space
from tuner.space import Choice, Dimension, Grid, Integer, fixed_paths, is_number, overlap

SMOKE_TRIALS, SMOKE_SEEDS = 4, 2
SMOKE_LIMITS = {  # of the base, and of what is searched
    "optimiser.epochs": 10, "encoder.hidden": 64, "encoder.dim": 64, "method.metric.hidden": 64,
    "evaluation.probe_epochs": 100,
}  # fmt: skip


def assemble_sweep(asked: Asked, fields: Mapping[str, Any]) -> SweepSpec:
    """One sweep spec. What it was told of the base stays fixed: the default space leaves those fields out.

    Args:
        asked: a sweep spec, or what the base is to be; its overrides are the base's.
        fields: of the sweep itself, by dotted path; those that are None stay as they are.

    Raises:
        InvalidInput: the file is no sweep, --set fixes a field that its space searches, or the whole does not fit.
    """
    document, given = _written(asked)
    _refuse_fixed(document.get("space"), apply_overrides({}, asked.overrides))
    return parse_sweep(_with(fields, with_open_space(document, given)))


def stored_sweep(path: Path, overrides: list[str], fields: Mapping[str, Any]) -> SweepSpec:
    """The spec that a sweep directory keeps, which is complete, with the same options on top."""
    document = read_document(path)
    if not isinstance(document, dict) or not isinstance(document.get("base"), dict):
        raise InvalidInput(f"{path}: is not the spec of a sweep; --out must be the directory of one")
    return parse_sweep(_with(fields, {**document, "base": apply_overrides(document["base"], overrides)}))


def _with(fields: Mapping[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    for path, value in fields.items():
        if value is not None:
            set_value(document, path, value)
    return document


def _written(asked: Asked) -> tuple[dict[str, Any], dict[str, Any]]:
    """The document before options other than --set, its base complete; and what of that base was asked for."""
    given = apply_overrides({}, asked.overrides)
    if asked.spec_file is None:
        return {"base": assemble(asked).model_dump(mode="json")}, given
    if asked.is_described:
        raise InvalidInput(
            "a sweep spec says its own data set and settings; change them with --set, not --dataset, --method or "
            "--preset"
        )
    document = read_document(asked.spec_file)
    if not isinstance(document, dict) or not isinstance(document.get("base"), dict):
        raise InvalidInput(
            f"{asked.spec_file}: a sweep spec has a section `base`, the training spec that trials vary; put the "
            "training spec under it. `nml sweep --show-spec` prints an example."
        )
    base = document["base"]
    return {**document, "base": completed(base, asked.overrides)}, merged(base, given)


def _refuse_fixed(space: Any, overrides: Mapping[str, Any]) -> None:
    """Refuse --set for what the file's own space searches: it would fix nothing."""
    for path in space if isinstance(space, dict) else ():
        fixed = next((other for other in fixed_paths(overrides) if overlap(path, other)), None)
        if fixed is not None:
            raise InvalidInput(
                f"--set {fixed}: the sweep's space searches {path}. Take it out of the space to fix it, or name where "
                "to begin in `starts`."
            )


def shrink(spec: SweepSpec) -> SweepSpec:
    """The same sweep so small that it runs in about a minute; shrinking it again changes nothing."""
    document = spec.model_dump(mode="json")
    document |= {"trials": min(spec.trials, SMOKE_TRIALS), "seeds": min(spec.seeds, SMOKE_SEEDS)}
    space = spec.dimensions()
    for path, limit in SMOKE_LIMITS.items():
        value = value_at(document["base"], path)
        if is_number(value):  # not every method has a metric
            set_value(document["base"], path, min(value, limit))
        for start in document["starts"] or []:
            if path in start:
                start[path] = min(start[path], limit)
    smaller = {path: _shrunk(dimension, SMOKE_LIMITS.get(path)) for path, dimension in space.items()}
    if smaller != space:
        document["space"] = {path: dimension.model_dump(mode="json") for path, dimension in smaller.items()}
    return parse_sweep(document)


def _shrunk(dimension: Dimension, limit: int | None) -> Dimension:
    """The dimension in proportion, so that its largest whole number is the limit."""
    if limit is None:
        return dimension
    if isinstance(dimension, Integer) and dimension.high > limit:
        low = min(max(1, dimension.low * limit // dimension.high), limit - 1)
        return Integer(low=low, high=limit)
    if isinstance(dimension, Choice | Grid) and all(map(is_number, dimension.values)) and max(dimension.values) > limit:
        scaled = [max(1, round(value * limit / max(dimension.values))) for value in dimension.values]
        return dimension.model_copy(update={"values": tuple(dict.fromkeys(scaled))})
    return dimension
