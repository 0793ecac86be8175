"""Graph contrastive learning with learned negative metrics: `fit(spec, run_dir)` and the specs it takes.

Importing the package loads no torch; `fit` does.
"""

from __future__ import annotations

import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.loop import fit as fit

__all__ = ["fit", "version"]


@cache
def version() -> str:
    """Version of the code that runs: the distribution's and, in a git checkout, the commit."""
    try:
        number = metadata.version("nml-gcl")
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        number = "0"
    root = Path(__file__).parent.parent
    if not (root / ".git").exists():
        return number
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return number
    return f"{number}+{commit}"


def __getattr__(name: str) -> Any:
    if name == "fit":
        from trainer.loop import fit

        return fit
    raise AttributeError(f"module 'trainer' has no attribute {name!r}")
