"""A listening encoder for the tests that talk to one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.trainer.inference.encoders import EncoderProcess, until


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EncoderProcess]:
    with EncoderProcess(tmp_path_factory.mktemp("home")) as found:
        yield found


@pytest.fixture
def encoder(listening: EncoderProcess) -> EncoderProcess:
    """One for all tests of a module, each of which finds it without workers."""
    until(lambda: not listening.workers())
    return listening
