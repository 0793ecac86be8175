"""A cell is trained once, kept small, and trained again only when its settings change."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest

from trainer.config import spec_hash
from trainer.errors import InvalidInput
from trainer.paper.cells import Cell, cells_of, compute, draw_map
from trainer.paper.rows import ROWS, Row, choose_rows

QUICK = {"evaluation.cluster_seeds": 1, "evaluation.probe_epochs": 50}
FEATURES = Row("features", "methods", "raw features", "features", QUICK, ("digits",))


def finish(cell: Cell, folder: Path, *, deadline: float | None = None) -> bool:
    return compute(cell, folder / "cells", folder / "runs", deadline=deadline, say=lambda _: None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paper")
    assert finish(Cell("digits", FEATURES, 0), folder)
    return folder


def test_a_cell_holds_every_figure_of_the_tables_and_its_run_is_gone(finished: Path):
    cell = Cell("digits", FEATURES, 0)
    found = cell.read(finished / "cells")
    assert found is not None
    assert found["accuracy"].keys() == {"clean", "bgrl20", "pygcl_swap"}  # its splits are random
    assert all(0 < judged["test"] <= 100 for judged in found["accuracy"].values())
    assert {"fmi", "ari", "nmi", "ratio", "cpu_seconds", "peak_mb", "histogram", "curves"} <= found.keys()
    assert cell.file(finished / "cells").stat().st_size < 20_000
    assert [path.name for path in (finished / "runs").iterdir()] == ["log.txt"]


def test_a_cell_is_stale_when_its_settings_change(finished: Path):
    row = dataclasses.replace(FEATURES, changes=QUICK | {"encoder.smoothing": 1})
    assert Cell("digits", row, 0).read(finished / "cells") is None
    assert Cell("digits", FEATURES, 1).read(finished / "cells") is None


def test_a_cell_from_before_a_field_was_added_is_still_fresh(finished: Path, tmp_path: Path):
    cell = Cell("digits", FEATURES, 0)
    document = json.loads(cell.file(finished / "cells").read_text())
    del document["spec"]["optimiser"]["warmup_epochs"]  # as if this field had come later
    document["spec_hash"] = "of a spec without it"
    cell.file(tmp_path).parent.mkdir(parents=True)
    cell.file(tmp_path).write_text(json.dumps(document))
    assert cell.read(tmp_path) is not None
    document["spec"]["optimiser"]["no_longer_there"] = 1
    cell.file(tmp_path).write_text(json.dumps(document))
    assert cell.read(tmp_path) is None


@pytest.mark.slow
def test_a_deadline_leaves_the_run_to_go_on_with(tmp_path: Path):
    cell = Cell("digits", FEATURES, 0)
    assert not finish(cell, tmp_path, deadline=time.monotonic())
    assert cell.read(tmp_path / "cells") is None
    assert finish(cell, tmp_path)
    assert cell.read(tmp_path / "cells") is not None


@pytest.mark.slow
def test_a_run_that_cannot_be_trained_is_written_with_its_reason(tmp_path: Path):
    row = dataclasses.replace(FEATURES, changes={"data.name": "imported", "data.imported": "nowhere"})
    cell = Cell("digits", row, 0)
    assert finish(cell, tmp_path)
    found = json.loads(cell.file(tmp_path / "cells").read_text())
    assert "nowhere" in found["failed"]


def test_a_map_has_a_place_for_each_node_of_its_sample(tmp_path: Path):
    import trainer
    from trainer.presets import preset_document

    document = preset_document("features", "synthetic") | {"run": {"track": False}, "evaluation": {"figures": False}}
    document["data"] |= {"synthetic": {"nodes": 60, "classes": 3}}
    trainer.fit(trainer.parse_spec(document), tmp_path / "run")
    found = draw_map(tmp_path / "run" / "embeddings")
    assert len(found["xy"]) == len(found["label"]) == 60
    assert found == draw_map(tmp_path / "run" / "embeddings")


def test_cells_go_seed_by_seed_and_only_where_a_row_has_settings():
    rows = choose_rows(["nml-official", "uniform", "alpha-0.3"], None)
    cells = [(cell.seed, cell.dataset, cell.row.name) for cell in cells_of(["cora", "cs", "photo"], rows, 2)]
    per_seed = [("cora", "nml-official"), ("cora", "uniform"), ("photo", "nml-official"), ("photo", "uniform"),
                ("photo", "alpha-0.3")]  # fmt: skip
    assert cells == [(seed, *cell) for seed in range(2) for cell in per_seed]


def test_every_row_has_a_valid_spec_and_a_hash_of_its_own():
    for dataset in ("cora", "photo"):
        hashes = [spec_hash(row.spec(dataset, 0)) for row in ROWS if dataset in row.datasets]
        assert len(set(hashes)) >= len(hashes) - 2  # α = 0.1 and T_M = 5 are the published ones on Photo


def test_unknown_rows_and_groups_are_refused_with_what_there_is():
    with pytest.raises(InvalidInput, match=r"no row 'gracee'.*nml-official"):
        choose_rows(["gracee"], None)
    with pytest.raises(InvalidInput, match=r"no group 'table1'.*ablations"):
        choose_rows(None, ["table1"])
