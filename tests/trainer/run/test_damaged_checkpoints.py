"""Damage of any kind to checkpoints and journals: the newest whole checkpoint is used, and no run goes on wrong."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.faults.histories import small_spec, without_timing, written_curve
from trainer.config import parse_spec
from trainer.files.journal import append, fold, read_journal
from trainer.loop import fit
from trainer.run.checkpoint import checkpoints

SPEC = parse_spec(small_spec(epochs=12, run={"track": False, "keep_checkpoints": 5, "checkpoint_every": 2}))
TENSORS, MANIFEST = "state.safetensors", "manifest.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that has ended, with its checkpoints."""
    place = tmp_path_factory.mktemp("whole") / "run"
    fit(SPEC, place)
    return place


@pytest.fixture
def run(whole, tmp_path) -> Path:
    """The same run as if it had been killed in epoch 11."""
    place = tmp_path / "run"
    shutil.copytree(whole, place)
    for name in ("embeddings", "figures", "metrics.json"):
        path = place / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for late in [path for path in checkpoints(place / "checkpoints") if path.name > "epoch-0000010"]:
        shutil.rmtree(late)
    lines = (place / "events.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if (json.loads(line).get("epoch") or 0) <= 10 and '"end"' not in line]
    (place / "events.jsonl").write_text("".join(kept))
    return place


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip(path: Path) -> None:
    """One bit, in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def other_epoch(path: Path) -> None:
    """Still a manifest, but of another epoch: its file tells the wrong one."""
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"epoch": document["epoch"] + 1}))


HOW = [(file, how) for file in (TENSORS, MANIFEST) for how in (cut, zero, garbage, empty, flip, Path.unlink)]
HOW += [(MANIFEST, how) for how in (other_epoch, lambda path: path.write_text("[]"), lambda path: path.write_text("7"))]


@pytest.mark.slow
@pytest.mark.parametrize("file, how", HOW)
def test_a_damaged_checkpoint_is_passed_over_and_the_curve_is_the_same(run, whole, file, how, caplog):
    newest = checkpoints(run / "checkpoints")[-1]
    assert newest.name == "epoch-0000010"
    how(newest / file)
    fit(SPEC, run, resume=True)
    assert f"{newest} is skipped" in caplog.text
    assert written_curve_folded(run) == written_curve(whole)
    assert {"type": "rewind", "epoch": 8}.items() <= rewind_of(run).items()


@pytest.mark.slow
@pytest.mark.parametrize("how", [cut, zero, garbage])
def test_a_run_without_a_whole_checkpoint_starts_again(run, whole, how):
    for path in checkpoints(run / "checkpoints"):
        how(path / TENSORS)
    fit(SPEC, run, resume=True)
    assert written_curve_folded(run) == written_curve(whole)
    assert rewind_of(run)["epoch"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        b'{"type": "epoch", "epoch": 11, "metr',
        bytes(5_000),
        os.urandom(5_000),
        b'{"type": "step", "epoch": "eleven"}\n{"type": 7}\n[]\n\xff\xfe\n{"type": "x", "epoch": [1]}\n',
        b"[" * 200_000 + b"\n",
    ],
    ids=["torn", "zeroed", "garbage", "wrong types", "deep"],
)
def test_a_journal_with_a_damaged_end_is_continued(run, whole, damage):
    with (run / "events.jsonl").open("ab") as file:
        file.write(damage)
    fit(SPEC, run, resume=True)
    assert written_curve_folded(run) == written_curve(whole)


def test_garbage_in_the_middle_of_a_journal_costs_its_lines_and_no_more(tmp_path):
    path = tmp_path / "events.jsonl"
    for epoch in range(1, 101):
        append(path, {"type": "epoch", "epoch": epoch, "metrics": {}})
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 60] = os.urandom(60).replace(b"\n", b"x")
    path.write_bytes(data)
    epochs = [event["epoch"] for event in read_journal(path)]
    assert len(epochs) >= 97
    assert epochs == sorted(epochs)


def written_curve_folded(directory: Path) -> list[dict[str, float]]:
    held = [event for event in fold(read_journal(directory / "events.jsonl")) if event["type"] == "epoch"]
    return [without_timing(event["metrics"]) for event in held if isinstance(event["epoch"], int)]


def rewind_of(directory: Path) -> dict:
    return [event for event in read_journal(directory / "events.jsonl") if event["type"] == "rewind"][-1]
