"""The rows of the paper's tables: each a preset, or a preset with some fields changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trainer.config import TrainSpec, parse_spec
from trainer.errors import InvalidInput
from trainer.files.documents import set_value
from trainer.methods import METHODS
from trainer.presets import PRESETS, preset_document

DATASETS = ("cora", "citeseer", "photo", "pubmed", "computers", "cs", "physics", "wikics")  # cheapest first
PUBLIC_SPLIT = ("cora", "citeseer", "pubmed")
GROUPS = ("methods", "ablations", "alpha", "t_m")


@dataclass(frozen=True)
class Row:
    """Settings that a table has a row for."""

    name: str
    group: str
    title: str
    preset: str
    changes: dict[str, Any] = field(default_factory=dict)
    datasets: tuple[str, ...] = DATASETS

    def spec(self, dataset: str, seed: int) -> TrainSpec:
        """What a cell of this row trains.

        Raises:
            InvalidInput: the preset has no settings for the data set.
        """
        document = preset_document(self.preset, dataset)
        quiet = {"run.seed": seed, "run.track": False, "evaluation.figures": False, "run.diagnose_every": 5}
        for path, value in (quiet | self.changes).items():
            set_value(document, path, value)
        return parse_spec(document)


def _all_rows() -> tuple[Row, ...]:
    rows = [Row(preset, "methods", _title(preset), preset) for preset in PRESETS]
    for kind, title in (("uniform", "NML-GCL without M"), ("cosine", "NML-GCL, cosine instead of M")):
        rows.append(Row(kind, "ablations", title, "nml-official", {"method.metric.kind": kind}))
    on_photo = ("photo",)
    for alpha in (0.0, 0.1, 0.3, 0.5, 0.7, 1.0):
        changes = {"method.reg.coefficient": alpha}
        rows.append(Row(f"alpha-{alpha:g}", "alpha", f"α = {alpha:g}", "nml-official", changes, on_photo))
    for steps in (1, 2, 3, 5, 8, 10):
        changes = {"method.inner_steps": steps}
        rows.append(Row(f"t_m-{steps}", "t_m", f"T_M = {steps}", "nml-official", changes, on_photo))
    return tuple(rows)


def _title(preset: str) -> str:
    by_name = {method.model_fields["name"].default: method.title for method in METHODS}
    title = by_name[PRESETS[preset][0]]
    return title if preset in by_name else f"{title} ({preset})"


ROWS = _all_rows()
BY_NAME = {row.name: row for row in ROWS}


def choose_rows(names: list[str] | None, groups: list[str] | None) -> list[Row]:
    """The rows named, or those of some groups; without either the methods and the ablations.

    Raises:
        InvalidInput: a name that no row or group has.
    """
    for name in names or []:
        if name not in BY_NAME:
            raise InvalidInput(f"there is no row {name!r}; choose from {', '.join(BY_NAME)}")
    for group in groups or []:
        if group not in GROUPS:
            raise InvalidInput(f"there is no group {group!r}; choose from {', '.join(GROUPS)}")
    if names:
        return [BY_NAME[name] for name in names]
    wanted = groups or ["methods", "ablations"]
    return [row for row in ROWS if row.group in wanted]
