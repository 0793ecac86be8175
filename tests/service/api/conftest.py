"""Servers for tests: one each, or one for a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from service.settings import Settings
from tests.service.api.server import Live, serving


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Live]]:
    """Start servers with settings of the test's own; the same home twice is the same service."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Live:
            given = {"home": tmp_path / "home", "poll_seconds": 0.02, "memory_limit": "8GB", **settings}
            return stack.enter_context(serving(Settings(**given)))

        yield start


@pytest.fixture
def live(serve: Callable[..., Live]) -> Live:
    """A server on loopback, where no key is needed."""
    return serve()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One for a whole module, for tests that leave nothing behind which others would mind."""
    home = tmp_path_factory.mktemp("home")
    with serving(Settings(home=home, poll_seconds=0.02, memory_limit="8GB", rate_burst=100_000)) as server:
        yield server
