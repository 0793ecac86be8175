"""Dockerfiles of docker/ as tests read them."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docker"


def read(name: str) -> list[tuple[str, str]]:
    """(instruction, rest) pairs, continued lines joined, comments gone."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(None, 1)[0].upper(), line.split(None, 1)[1]) for line in text.splitlines() if line.strip()]


def last_stage(name: str) -> list[tuple[str, str]]:
    """What the image itself is made of."""
    pairs = read(name)
    return pairs[max(i for i, (word, _) in enumerate(pairs) if word == "FROM") :]
