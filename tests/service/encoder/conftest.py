"""A running encoder server for the tests that talk to one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.service.encoder.servers import EncoderServer, until


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EncoderServer]:
    with EncoderServer(tmp_path_factory.mktemp("home"), connections=1) as found:
        yield found


@pytest.fixture
def server(listening: EncoderServer) -> EncoderServer:
    """One for all tests of a module, each of which finds it without workers."""
    listening.post(idle_seconds=0.01)
    until(lambda: not listening.workers())
    return listening
