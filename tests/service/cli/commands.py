"""The `nml` command as a process, for tests that talk to a real service."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

NML = [sys.executable, "-m", "service.cli"]
ROOT = Path(__file__).resolve().parents[3]


def nml(*arguments: str, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command and check its exit code."""
    done = subprocess.run(
        [*NML, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, check=False, timeout=240,
        cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done
