"""A command that fails tells the process that started it why, with the exit code that the retry rules know."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys

import pytest

from trainer.errors import Cancelled, Infrastructure, InvalidInput, NonFinite, OutOfMemory
from trainer.process.outcome import as_trainer_error, report_failure


@pytest.fixture
def pipe(monkeypatch):
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    monkeypatch.setenv("NML_OUTCOME_FD", str(writing))
    yield reading
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    "error, kind, message",
    [
        (InvalidInput("bad"), "invalid", "bad"),
        (NonFinite("nan"), "invalid", "nan"),
        (OutOfMemory("oom"), "oom", "oom"),
        (Infrastructure("net"), "infra", "net"),
        (Cancelled("stop"), "cancelled", "stop"),
        (ZeroDivisionError("x"), "infra", "ZeroDivisionError: x"),
    ],
)
def test_kind_and_message_arrive_as_one_line(pipe, error, kind, message):
    report_failure(error)
    assert json.loads(os.read(pipe, 10_000)) == {"kind": kind, "message": message}


@pytest.mark.parametrize("text", ["x" * 50_000, "ü€" * 20_000, "\ud800" * 9_000], ids=["long", "wide", "broken"])
def test_any_message_is_cut_to_what_a_pipe_takes(pipe, text):
    report_failure(InvalidInput(text))
    line = os.read(pipe, 100_000)
    assert len(line) <= 4_096
    assert json.loads(line)["message"]


@pytest.mark.parametrize("value", ["", "x", "-1", "9999", str(os.open(os.devnull, os.O_WRONLY))])
def test_without_a_pipe_nothing_happens(monkeypatch, value):
    monkeypatch.setenv("NML_OUTCOME_FD", value)
    report_failure(InvalidInput("bad"))
    monkeypatch.delenv("NML_OUTCOME_FD")
    report_failure(InvalidInput("bad"))


def test_memory_and_disk_have_kinds():
    assert isinstance(as_trainer_error(MemoryError()), OutOfMemory)
    for number in (errno.ENOSPC, errno.EDQUOT):
        found = as_trainer_error(OSError(number, "no room"))
        assert isinstance(found, Infrastructure)
        assert "disk is full" in str(found)
    assert as_trainer_error(OSError(errno.EIO, "broken")) is None
    assert as_trainer_error(KeyError()) is None


@pytest.mark.parametrize("module, document", [("trainer", {"preset": 7}), ("tuner", {"base": 7})])
def test_commands_report_what_they_refuse(tmp_path, module, document):
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(document))
    reading, writing = os.pipe()
    run = subprocess.run(
        [sys.executable, "-m", module, str(spec), "--out", str(tmp_path / "out")], pass_fds=[writing],
        env=os.environ | {"NML_OUTCOME_FD": str(writing)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    os.close(writing)
    said = json.loads(os.read(reading, 10_000))
    os.close(reading)
    assert run.returncode == 3
    assert said["kind"] == "invalid"
    assert said["message"] in run.stderr


UNEXPECTED = """
import sys
import trainer.{module}
def broken(*_, **__): raise {error}
trainer.{module}.{name} = broken
from trainer.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "error, code, kind",
    [
        ("RuntimeError('surprise')", 1, "infra"),
        ("OSError(28, 'No space left on device')", 5, "infra"),
        ("MemoryError()", 4, "oom"),
    ],
)
def test_what_nobody_foresaw_is_reported_too(tmp_path, error, code, kind):
    spec = tmp_path / "spec.json"
    spec.write_text("{}")
    script = UNEXPECTED.format(module="files.documents", name="read_document", error=error)
    reading, writing = os.pipe()
    run = subprocess.run(
        [sys.executable, "-c", script, str(spec), "--out", str(tmp_path / "out")], pass_fds=[writing],
        env=os.environ | {"NML_OUTCOME_FD": str(writing)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    os.close(writing)
    said = json.loads(os.read(reading, 10_000))
    os.close(reading)
    assert (run.returncode, said["kind"]) == (code, kind), run.stderr
    if code == 1:
        assert "Traceback" in run.stderr
        assert said["message"] == "RuntimeError: surprise"
