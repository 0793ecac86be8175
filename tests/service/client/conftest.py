"""Servers and clients for tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.client import Client
from service.settings import Settings
from tests.service.api.server import Live, serving


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """A real server on loopback, with a database of its own."""
    with serving(Settings(home=tmp_path / "home", poll_seconds=0.02, memory_limit="8GB")) as server:
        yield server


@pytest.fixture
def client(live: Live) -> Iterator[Client]:
    with Client(live.url, key="") as found:
        yield found
