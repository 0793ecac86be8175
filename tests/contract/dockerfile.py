"""Dockerfiles of docker/ as tests read them."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.runtime.dockerfile import instructions

FOLDER = Path(__file__).parents[2] / "docker"


def read(name: str) -> list[tuple[str, str]]:
    """(instruction, rest) pairs, continued lines joined, comments gone."""
    return instructions(FOLDER / name)


def last_stage(name: str) -> list[tuple[str, str]]:
    """What the image itself is made of."""
    pairs = read(name)
    return pairs[max(i for i, (word, _) in enumerate(pairs) if word == "FROM") :]
