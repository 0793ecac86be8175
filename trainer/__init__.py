"""Graph contrastive learning with learned negative metrics: `fit(spec, run_dir)` and the specs it takes.

Importing the package loads no torch; `fit` does.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.loop import fit as fit

__all__ = ["fit", "version"]


def version() -> str:
    """Version of the installed distribution."""
    try:
        return metadata.version("nml-gcl")
    except metadata.PackageNotFoundError:  # a source tree that was never installed
        return "0+source"


def __getattr__(name: str) -> Any:
    if name == "fit":
        from trainer.loop import fit

        return fit
    raise AttributeError(f"module 'trainer' has no attribute {name!r}")
