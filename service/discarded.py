"""How folders are deleted: out of sight at once, by a new name, then file by file.

Nothing is ever deleted because the database does not know it: that may be another database.
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

_ENDING = ".deleted"  # of a folder that is on its way out


def discard(folder: Path) -> None:
    """Remove a folder and all in it. Does nothing if there is none."""
    remove(set_aside(folder))


def set_aside(folder: Path) -> Path | None:
    """Give a folder another name, at once however large it is; `remove` that. None: there is no such folder."""
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}{_ENDING}")
    try:
        return folder.rename(aside)
    except FileNotFoundError:
        return None


def remove(aside: Path | None) -> None:
    """Remove what was set aside; a sweep does it if we are killed before."""
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)


def sweep_discarded(parent: Path) -> None:
    """Remove what a service that was killed while deleting has left below `parent`."""
    for folder in parent.glob(f".*{_ENDING}"):
        shutil.rmtree(folder, ignore_errors=True)
