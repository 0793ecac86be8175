"""`python -P -m service.embeddings`: publishes and indexes, and tells by exit code and outcome how it went."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from service.embeddings.table import Table
from tests.service.embeddings.tables import VERSION, make_export

ROOT = Path(__file__).resolve().parents[3]


def job(home: Path, order: object) -> tuple[int, dict, str]:
    """Exit code, outcome told through the pipe ({}: none), and the log."""
    file = home / "order.json"
    file.write_text(order if isinstance(order, str) else json.dumps(order))
    reading, writing = os.pipe()
    run = subprocess.run(
        [sys.executable, "-P", "-m", "service.embeddings", str(file)], capture_output=True, text=True, timeout=120,
        env=os.environ | {"NML_HOME": str(home), "NML_OUTCOME_FD": str(writing), "PYTHONPATH": str(ROOT)},
        pass_fds=[writing], check=False, cwd=home,
    )  # fmt: skip
    os.close(writing)
    with open(reading) as pipe:
        outcome = pipe.read()
    return run.returncode, json.loads(outcome) if outcome else {}, run.stderr


def test_publishing_makes_the_version_and_may_be_repeated(tmp_path):
    make_export(tmp_path / "runs" / VERSION, 60, 4, "str")
    for _ in range(2):
        code, outcome, log = job(tmp_path, {"do": "publish", "version": VERSION})
        assert (code, outcome) == (0, {}), log
        assert "published 60 vectors of 4 numbers" in log
        assert Table.open(tmp_path / "embeddings" / VERSION).ids.row_of("paper-5") == 5
        shutil.rmtree(tmp_path / "runs" / VERSION, ignore_errors=True)


def test_a_damaged_export_is_invalid_and_no_path_of_the_server_is_told(tmp_path):
    run = make_export(tmp_path / "runs" / VERSION)
    with (run / "embeddings" / "vectors.npy").open("r+b") as file:
        file.seek(200)
        file.write(b"?")
    code, outcome, _ = job(tmp_path, {"do": "publish", "version": VERSION})
    assert (code, outcome["kind"]) == (3, "invalid")
    assert "vectors.npy: differs from the checksum" in outcome["message"]
    assert str(tmp_path) not in outcome["message"]


def test_a_home_that_cannot_be_written_is_a_failure_to_try_again(tmp_path):
    make_export(tmp_path / "runs" / VERSION)
    (tmp_path / "embeddings").write_text("a file where the folder should be")
    code, outcome, _ = job(tmp_path, {"do": "publish", "version": VERSION})
    assert (code, outcome["kind"]) == (5, "infra")
    assert str(tmp_path) not in outcome["message"]


def test_a_version_that_is_gone_cannot_be_indexed(tmp_path):
    code, outcome, _ = job(tmp_path, {"do": "index", "version": VERSION, "kind": "hnsw"})
    assert (code, outcome["kind"]) == (3, "invalid")
    assert "no longer exists" in outcome["message"]


def test_indexing_adds_the_index_to_the_version(tmp_path):
    make_export(tmp_path / "runs" / VERSION, 500, 8)
    assert job(tmp_path, {"do": "publish", "version": VERSION})[0] == 0
    place = tmp_path / "embeddings" / VERSION
    made = []
    for _ in range(2):  # a killed job is run again: what it had made is not made anew
        code, _, log = job(tmp_path, {"do": "index", "version": VERSION, "kind": "hnsw"})
        assert code == 0, log
        assert json.loads((place / "index.hnsw.json").read_text())["kind"] == "hnsw"
        made.append([(place / name).stat().st_ino for name in ("index.hnsw.faiss", "index.hnsw.json")])
    assert made[0] == made[1]


@pytest.mark.parametrize(
    "order",
    [
        "{",
        [],
        {},
        {"do": "publish"},
        {"do": "publish", "version": "../../etc"},
        {"do": "publish", "version": VERSION + "\n"},
        {"do": "publish", "version": VERSION, "kind": "hnsw"},
        {"do": "index", "version": VERSION},
        {"do": "index", "version": VERSION, "kind": "flat"},
        {"do": "delete", "version": VERSION},
    ],
)
def test_an_order_of_another_form_is_refused(tmp_path, order, monkeypatch, capfd):
    from service.embeddings.__main__ import main

    monkeypatch.setenv("NML_HOME", str(tmp_path))
    file = tmp_path / "order.json"
    file.write_text(order if isinstance(order, str) else json.dumps(order))
    assert main([str(file)]) == 3
    assert not (tmp_path / "embeddings").exists()


def test_an_order_that_cannot_be_read_may_be_there_later(tmp_path):
    from service.embeddings.__main__ import main

    assert main([str(tmp_path / "none.json")]) == 5
