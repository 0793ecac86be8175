"""What may vary in a sweep: dimensions over fields of the training spec, and the paper's table of them (methods 7)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, model_validator

from trainer.config import TrainSpec, parse_spec
from trainer.errors import InvalidInput
from trainer.files.documents import leaf_paths, set_value, value_at
from trainer.spec.base import Spec

Value = Any  # a JSON value of a field: a number, a word, a truth value, or a list of them
SEARCHED = ("augment", "encoder", "method", "optimiser", "sampling")  # what decides what is learned


class Choice(Spec):
    """One of some values, in no order."""

    kind: Literal["choice"] = "choice"
    values: tuple[Value, ...] = Field(min_length=1, max_length=1_000, description="values the field may take")


class Grid(Spec):
    """Every one of some values. With algorithm=grid all combinations are tried; else it means the same as choice."""

    kind: Literal["grid"] = "grid"
    values: tuple[Value, ...] = Field(min_length=1, max_length=1_000, description="values the field takes")


class _Range(Spec):
    low: float = Field(description="smallest value, included")
    high: float = Field(description="largest value, included")

    @model_validator(mode="after")
    def _is_a_range(self) -> _Range:
        if not self.low < self.high:
            raise ValueError(f"low ({self.low:g}) must be below high ({self.high:g})")
        return self


class Uniform(_Range):
    """Any number in a range."""

    kind: Literal["uniform"] = "uniform"


class LogUniform(_Range):
    """Any number in a range, its logarithm uniform: each factor of ten is as likely as the next."""

    kind: Literal["loguniform"] = "loguniform"
    low: float = Field(gt=0, description="smallest value, included; above 0")


class Integer(Spec):
    """A whole number in a range."""

    kind: Literal["integer"] = "integer"
    low: int = Field(description="smallest value, included")
    high: int = Field(description="largest value, included")

    @model_validator(mode="after")
    def _is_a_range(self) -> Integer:
        if not self.low < self.high:
            raise ValueError(f"low ({self.low}) must be below high ({self.high})")
        return self


Dimension = Annotated[Choice | Grid | Uniform | LogUniform | Integer, Field(discriminator="kind")]


_DIMENSIONS: TypeAdapter[dict[str, Dimension]] = TypeAdapter(dict[str, Dimension])


def default_space(base: TrainSpec) -> dict[str, Dimension]:
    """What the base's method searches unless a sweep says otherwise (methods 7)."""
    return _DIMENSIONS.validate_python(base.method.space())


def fixed_paths(given: Mapping[str, Any]) -> list[str]:
    """The dotted paths that a part of a training spec gives a value. A method's name alone fixes none of its fields."""
    named = isinstance(given.get("method"), str)
    return list(leaf_paths({key: value for key, value in given.items() if not (named and key == "method")}))


def open_space(base: TrainSpec, given: Mapping[str, Any]) -> dict[str, Dimension]:
    """The default space of the base, less the fields that somebody gave a value on purpose: `given`, a part of it.

    Raises:
        InvalidInput: nothing is left to search.
    """
    space, fixed = default_space(base), fixed_paths(given)
    left = {path: dimension for path, dimension in space.items() if not any(overlap(path, other) for other in fixed)}
    if space and not left:
        raise InvalidInput(
            f"base gives a value to every field that a sweep of method {base.method.name} searches by default "
            f"({', '.join(space)}), so nothing is left to search. Leave some out of base, or name what to search in "
            "space."
        )
    return left


def overlap(path: str, other: str) -> bool:
    """Whether two dotted paths are the same field, or one is a part of the other."""
    shorter, longer = sorted((path, other), key=len)
    return longer == shorter or longer.startswith(f"{shorter}.")


def changed(base: TrainSpec, changes: dict[str, Value]) -> TrainSpec:
    """The base with some fields set.

    Raises:
        InvalidInput: the values do not fit the training spec, alone or together.
    """
    document = base.model_dump(mode="json")
    for path, value in changes.items():
        set_value(document, path, value)
    return parse_spec(document)


def check_dimension(base: TrainSpec, path: str, dimension: Dimension) -> None:
    """Raises ValueError unless the path is a field that may be searched and both ends of the dimension suit it."""
    if path.split(".")[0] not in SEARCHED:
        raise ValueError(f"space.{path}: only {', '.join(SEARCHED)} can be searched; set it in base")
    ends = dimension.values if isinstance(dimension, Choice | Grid) else (dimension.low, dimension.high)
    for end in ends:
        try:
            changed(base, {path: end})
        except InvalidInput as error:
            raise ValueError(f"space.{path}: invalid value {end!r}: {error}") from error
    whole = value_at(base.model_dump(mode="json"), path)
    if isinstance(dimension, Uniform | LogUniform) and isinstance(whole, int) and not isinstance(whole, bool):
        try:
            changed(base, {path: (dimension.low + dimension.high) / 2 + 1 / math.pi})
        except InvalidInput as error:
            raise ValueError(f"space.{path}: takes whole numbers; use kind=integer") from error


def nearest(dimension: Dimension, value: Value) -> Value:
    if isinstance(dimension, Choice | Grid):
        if value in dimension.values or not is_number(value):
            return value
        numbers = [other for other in dimension.values if is_number(other)]
        return min(numbers, key=lambda other: abs(other - value)) if numbers else value
    if not is_number(value):
        return dimension.low
    return min(max(value, dimension.low), dimension.high)


def is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
