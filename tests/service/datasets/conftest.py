"""A store of a test's own, and servers whose uploads are imported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.settings import Settings
from service.store import Store, open_store
from tests.service.api.server import Live, serving
from tests.service.datasets.importers import importing


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", memory_limit="4GB", min_free_bytes=0)


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    settings.home.mkdir(parents=True)
    opened = open_store(settings)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server for a whole module, with imports under way."""
    home = tmp_path_factory.mktemp("home")
    settings = Settings(home=home, memory_limit="4GB", min_free_bytes=0, rate_burst=100_000)
    with serving(settings) as server, importing(server.store, settings):
        yield server
