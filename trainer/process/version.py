"""Which code runs."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parents[2]


@cache
def version() -> str:
    """Version of the code that runs: the distribution's and, in a git checkout, the commit."""
    from importlib import metadata  # several megabytes that a small process does not need

    try:
        number = metadata.version("nml-gcl")
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        number = "0"
    if not (_ROOT / ".git").exists():
        return number
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return number
    return f"{number}+{commit}"
