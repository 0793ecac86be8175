"""A service that `nml` finds by its environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.settings import Settings
from tests.service.api.server import Live, serving


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    with serving(Settings(home=tmp_path / "home", poll_seconds=0.02, memory_limit="8GB")) as server:
        monkeypatch.setenv("NML_URL", server.url)
        monkeypatch.delenv("NML_API_KEY", raising=False)
        yield server
