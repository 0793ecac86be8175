"""The folder of an imported graph, when it is deleted: out of sight at once, then removed file by file."""

from __future__ import annotations

import secrets
import shutil

from service.settings import Settings

_DELETED = ".deleted"  # ending of a folder that is on its way out


def remove_graph(settings: Settings, ref: str) -> None:
    """Remove a graph. Does nothing if there is none."""
    aside = settings.graphs / f".{ref}.{secrets.token_hex(6)}{_DELETED}"
    try:
        (settings.graphs / ref).rename(aside)
    except FileNotFoundError:
        return
    shutil.rmtree(aside, ignore_errors=True)


def sweep_deleted(settings: Settings) -> None:
    """Remove what a service that was killed while deleting has left."""
    for folder in settings.graphs.glob(f".*{_DELETED}"):
        shutil.rmtree(folder, ignore_errors=True)
