"""A store on SQLite and on a real PostgreSQL, and many threads at once."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.settings import Settings
from service.store import Store, open_store
from tests import postgres


@pytest.fixture(scope="session")
def server() -> Iterator[Callable[[], postgres.PostgreSQL]]:
    """Starts PostgreSQL when first asked for."""
    with ExitStack() as stack:
        started: list[postgres.PostgreSQL] = []

        def get() -> postgres.PostgreSQL:
            if not started:
                started.append(stack.enter_context(postgres.running()))
            return started[0]

        yield get


POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.skipif(postgres.MISSING, reason=postgres.MISSING_REASON))


@pytest.fixture(params=["sqlite", POSTGRESQL])
def settings(request: pytest.FixtureRequest, tmp_path: Path, server: Callable[[], postgres.PostgreSQL]) -> Settings:
    url = None if request.param == "sqlite" else server().new_database(f"t{secrets.token_hex(6)}")
    return Settings(home=tmp_path, database_url=url)


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    opened = open_store(settings)
    yield opened
    opened.close()


def at_once(count: int, work: Callable[[int], object]) -> list[object]:
    """Run `work` in so many threads that all begin at the same moment; exceptions are results."""
    barrier = threading.Barrier(count)

    def task(number: int) -> object:
        barrier.wait()
        try:
            return work(number)
        except Exception as error:
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(task, range(count)))


def both(one: Callable[[], object], other: Callable[[], object]) -> list[object]:
    """The results of two that begin at the same moment."""
    return at_once(2, lambda number: (one, other)[number]())
