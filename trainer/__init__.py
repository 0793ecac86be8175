"""Graph contrastive learning with learned negative metrics: `fit(spec, run_dir)` and the specs it takes.

Importing the package loads no torch; `fit` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.process.version import version as version

if TYPE_CHECKING:
    from trainer.loop import fit as fit

__all__ = ["fit", "version"]


def __getattr__(name: str) -> Any:
    if name == "fit":
        from trainer.loop import fit

        return fit
    raise AttributeError(f"module 'trainer' has no attribute {name!r}")
