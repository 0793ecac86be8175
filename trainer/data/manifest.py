"""What stands in the manifest.json of a graph on disk, read without numpy: enough to list graphs and plan for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer.errors import InvalidInput

FORMAT = 2


def read_manifest(directory: Path) -> dict[str, Any]:
    """What the manifest says.

    Raises:
        InvalidInput: there is none, it is damaged, or another version wrote it.
    """
    try:
        manifest: dict[str, Any] = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise InvalidInput(
                f"{directory}: graph format {manifest['format']}, this version reads {FORMAT}. Import or save it anew."
            )
    except (OSError, KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise not_a_graph(directory, error) from error
    return manifest


def not_a_graph(directory: Path, error: Exception) -> InvalidInput:
    """What to raise for a directory that is not what `store.save` writes."""
    return InvalidInput(f"{directory}: not a saved graph ({type(error).__name__}: {error}). Save it anew.")
