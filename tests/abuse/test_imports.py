"""Uploads by a client with an ordinary key that would take the service from everybody else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.settings import Settings
from service.store import open_store
from service.store.records import NewJob
from tests.service.datasets.importers import start_process
from trainer.data.importing.parquet import parquet_pieces
from trainer.data.sources.table_file import MAX_COLUMNS, TableFile
from trainer.errors import InvalidInput

REF, UPLOAD = "papers.0123456789ab", "c0ffee"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "uploads" / UPLOAD).mkdir(parents=True)
    pq.write_table(pa.table({"source": ["0"], "target": ["1"]}), tmp_path / "uploads" / UPLOAD / "edges.parquet")
    return tmp_path


def run_import(home: Path, **limits: int) -> tuple[int, str]:
    parts = {"nodes": "nodes.parquet", "edges": "edges.parquet"}
    spec = {"ref": REF, "upload": UPLOAD, "parts": parts, "options": {}, "memory_mb": 64, **limits}
    (home / "spec.json").write_text(json.dumps(spec))
    done = start_process(home / "spec.json", home)
    return done.exit_code, done.message or ""


def written(home: Path) -> int:
    return sum(path.stat().st_size for path in (home / "graphs").rglob("*") if path.is_file())


def constant_table(home: Path, *, rows: int, columns: int) -> Path:
    """Packs to almost nothing: every page is one value, repeated."""
    ones = pa.array(np.ones(rows, dtype=np.float32))
    table = pa.table({"id": pa.array(np.arange(rows)), **{f"x{i}": ones for i in range(columns)}})
    path = home / "uploads" / UPLOAD / "nodes.parquet"
    pq.write_table(table, path, compression="zstd")
    return path


def test_a_small_file_that_unpacks_to_gigabytes_is_given_up_before_it_fills_the_disk(home: Path):
    packed = constant_table(home, rows=200_000, columns=100).stat().st_size
    most = 2_000_000
    assert packed < most < 4 * 200_000 * 100
    code, message = run_import(home, max_bytes=most)
    assert (code, "2,000,000 bytes" in message) == (3, True), "final: an attempt more would do it again"
    assert written(home) == 0, "nothing is left of it"


def test_an_import_leaves_the_disk_what_it_must_keep_free(home: Path):
    constant_table(home, rows=1_000, columns=10)
    code, message = run_import(home, min_free_bytes=1 << 60)
    assert (code, "no room" in message) == (3, True)
    assert written(home) == 0


def test_within_its_limits_the_same_file_is_imported(home: Path):
    constant_table(home, rows=1_000, columns=10)
    code, message = run_import(home, max_bytes=1_000_000, min_free_bytes=1)
    assert (code, message) == (0, "")
    assert 1_000 * 10 * 4 < written(home) < 1_000_000


def test_a_wide_table_asks_for_its_schema_once_and_not_for_every_column(home: Path, monkeypatch: pytest.MonkeyPatch):
    path = constant_table(home, rows=3, columns=2_000)
    asked = 0
    real = pq.ParquetFile.schema_arrow.fget

    def counting(file: pq.ParquetFile) -> pa.Schema:
        nonlocal asked
        asked += 1
        return real(file)

    monkeypatch.setattr(pq.ParquetFile, "schema_arrow", property(counting))
    table = TableFile.open(path, "nodes")
    names = [name for name in table.columns if name != "id"]
    pieces = list(
        parquet_pieces(table, ["id"], names, block_bytes=1 << 21, scratch=home, tell=lambda share: None)
    )  # fmt: skip
    assert sum(len(columns["id"]) for columns, _ in pieces) == 3
    assert asked < 5


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_more_columns_than_a_table_may_have_are_refused_by_the_header(tmp_path: Path, kind: str):
    names = [f"x{i}" for i in range(MAX_COLUMNS + 1)]
    path = tmp_path / f"nodes.{kind}"
    if kind == "csv":
        path.write_text(",".join(names) + "\n")
    else:
        pq.write_table(pa.schema([(name, pa.float32()) for name in names]).empty_table(), path)
    with pytest.raises(InvalidInput, match="65,537 columns"):
        TableFile.open(path, "nodes")


def test_one_key_s_imports_do_not_keep_those_of_others_waiting(tmp_path: Path):
    store = open_store(Settings(home=tmp_path))

    def queue(owner: str | None) -> str:
        job = NewJob("import", {}, spec_hash="0", dataset="d.0123456789ab", owner=owner)
        return store.jobs.submit(job)[0].id

    def claimed() -> str | None:
        job = store.claims.claim("me", kinds=("import",), lease_seconds=60, fair=True)
        return None if job is None else job.owner

    for owner in ("flood", "flood", "flood", "other", None):
        queue(owner)
    assert [claimed() for _ in range(5)] == ["flood", "other", None, "flood", "flood"]
    store.close()
