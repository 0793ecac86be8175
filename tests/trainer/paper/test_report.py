"""Tables say what the cells say: means over seeds, the paper's numbers, failures, and differences paired by seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainer.files.atomic import write_json
from trainer.paper import figures, tables
from trainer.paper.cells import Cell
from trainer.paper.report import read_cells, write_report
from trainer.paper.rows import BY_NAME, choose_rows


def a_cell(seed: int, test: float, val: float = 80.0) -> dict[str, Any]:
    curve = {"epoch": [1, 5], "weight_fn": [1.2, 0.9], "weight_tn": [0.9, 1.1], "i_nml": [0.1, 2], "i_nce": [0.1, 1]}
    return {
        "seed": seed, "split": "public", "accuracy": {"clean": {"val": val, "test": test}}, "fmi": 50.0, "ari": 40.0,
        "nmi": 45.0, "ratio": 70.0, "cpu_seconds": 10.0 + seed, "peak_mb": 900, "curves": curve,
        "histogram": {"low": -1.0, "high": 1.0, "fn": [0.0, 1.0], "tn": [1.0, 0.0]},
    }  # fmt: skip


CELLS = {
    ("cora", "nml-official"): [a_cell(0, 84.0), a_cell(1, 85.0), a_cell(2, 87.0)],
    ("cora", "untrained"): [a_cell(0, 70.0)],
    ("cora", "sgc"): [{"failed": "code 4: memory"}],
}


def test_accuracy_is_mean_and_deviation_beside_the_papers():
    text = tables.accuracy(CELLS, choose_rows(None, None), ["cora", "photo"])
    assert "| 85.33 ± 1.53 ×3 (84.93) | – |" in text
    assert "| untrained encoder | 70.00 | – |" in text
    assert "| failed | – |" in text


def test_differences_are_paired_and_the_baseline_is_chosen_on_validation():
    rows = choose_rows(["nml-official", "nml", "untrained"], None)
    baseline = [a_cell(0, 83.0, val=81), a_cell(1, 84.5, val=81), a_cell(2, 85.0, val=81), a_cell(3, 99.0, val=81)]
    cells = CELLS | {("cora", "nml"): baseline}
    assert "| Cora |" not in tables.differences(cells, rows, ["cora"], "nml-official")  # ours and references are none
    others = [*rows, *(row for row in BY_NAME.values() if row.group == "alpha")]
    cells = CELLS | {("cora", "alpha-0.1"): baseline, ("cora", "alpha-1"): [a_cell(0, 90.0, val=70)]}
    text = tables.differences(cells, others, ["cora"], "nml-official")
    assert "| Cora | alpha-0.1 | +1.17 ± 0.76 | 3 | 0.12 |" in text


def test_the_page_is_written_from_fresh_cells_only(tmp_path: Path):
    row = BY_NAME["untrained"]
    for seed, dataset in ((0, "cora"), (0, "photo")):
        cell = Cell(dataset, row, seed)
        spec = row.spec(dataset, seed if dataset == "cora" else seed + 1)  # Photo's was computed with other settings
        cell.file(tmp_path / "cells").parent.mkdir(parents=True)
        write_json(cell.file(tmp_path / "cells"), a_cell(seed, 71.5) | {"spec": spec.model_dump(mode="json")})
    assert set(read_cells(tmp_path / "cells")) == {("cora", "untrained")}
    page = write_report(tmp_path).read_text()
    assert "| untrained encoder | 71.50 |" in page
    assert "Photo" not in page.split("Published elsewhere")[0].split("## Accuracy")[1]


def test_figures_show_the_published_method(tmp_path: Path):
    cells = CELLS | {("cora", "features"): [a_cell(0, 56.0)]}
    cells |= {("photo", "grace"): [a_cell(0, 92.0) | {"map": {"xy": [[0.0, 1.5], [2.0, -1.0]], "label": [0, 1]}}]}
    drawn = figures.draw(cells, ["cora", "photo"], tmp_path)
    assert [path.name for path in drawn] == ["weights.png", "estimates.png", "similarities.png", "maps.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
    assert figures.draw({}, ["cora"], tmp_path) == []


@pytest.mark.parametrize("name", ["nml-official", "uniform", "cosine"])
def test_rows_of_the_paper_have_its_numbers(name: str):
    from trainer.paper.published import PAPER

    assert PAPER[name]["cora"].accuracy is not None
    assert BY_NAME[name].spec("cora", 0).method.name == "nml"
