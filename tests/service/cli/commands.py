"""The `nml` command for tests that talk to a real service: in this process where that will do, or as one of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import psutil

from service.cli import main

NML = [sys.executable, "-m", "service.cli"]
ROOT = Path(__file__).resolve().parents[3]


class Done(NamedTuple):
    stdout: str
    stderr: str


def nml(*arguments: str, code: int = 0) -> Done:
    """Run a command here and check its exit code; a second faster than in a process of its own."""
    out, err, ended = io.StringIO(), io.StringIO(), None
    with patch.object(sys, "argv", ["nml", *arguments]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            ended = end.code or 0
    assert ended == code, (out.getvalue(), err.getvalue())
    return Done(out.getvalue(), err.getvalue())


def start_nml(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start a command as a process, its output in pipes."""
    return subprocess.Popen(
        [*NML, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, **environment},
    )  # fmt: skip


def users_of(home: Path) -> list[psutil.Process]:
    """Processes that keep their files in or below `home`, zombies not among them."""
    found = []
    for process in psutil.process_iter():
        try:
            place = process.environ().get("NML_HOME", "")
            if Path(place).is_relative_to(home) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found
