"""What every part of a spec has in common: closed, frozen, and errors that name the field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f]*$"  # names reach terminals, where other characters are commands
Probability = Annotated[float, Field(ge=0, lt=1)]


class Spec(BaseModel):
    """A closed part of the document: unknown keys refused, values never change, NaN is not a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def explain(error: ValidationError) -> str:
    """One line per wrong field: its dotted path and what is wrong with it."""
    lines = []
    for item in error.errors(include_url=False, include_context=False):
        where = field_path(item["loc"]) or "spec"
        what = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            what = "unknown key; remove it or check its spelling"
        lines.append(f"{where}: {what}")
    return "\n".join(lines)


def field_path(location: Sequence[int | str]) -> str:
    """Dotted path of a field as people write it: pydantic puts the method's name between `method` and its fields."""
    return ".".join(str(part) for place, part in enumerate(location) if place == 0 or location[place - 1] != "method")
