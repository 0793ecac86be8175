"""No request makes the API's memory grow beyond a budget, or keeps everybody else waiting beyond another.

Others are a client that asks for /livez again and again meanwhile. The budgets are generous, several times what is
measured on two busy cores (see the output, `pytest -s`), and what exceeds one is measured twice again: a machine that
stood still does so once, a request that costs too much does so each time.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from service.api.security import needed_scope
from service.app import create_app
from service.embeddings.jobs import about_version
from service.embeddings.layout import read_info
from service.settings import Settings
from service.store import open_store
from tests.abuse.hostile_requests import DIM, JSON, LARGE, ROWS, Hostile, hostile_requests, valid_requests
from tests.abuse.measured import Cost, MeasuredApi, measured_api
from tests.contract.stage import furnish
from tests.service.api.embeddings.published import put_job
from tests.service.embeddings.tables import make_export, publish

MEGABYTES, SECONDS = 250, 2.0  # that one request may cost
MEGABYTES_TOGETHER = 800  # that many at a time may
LEFT_MEGABYTES = 400  # that may stay when all are answered: allocators keep some, a leak would go on
QUESTION = f"/v1/embeddings/{LARGE}/neighbors"


@dataclass(frozen=True)
class Attacked:
    """A service with jobs, data sets and a version of 20,000 vectors, which asks for keys; and keys for it."""

    api: MeasuredApi
    settings: Settings
    keys: dict[str, str]  # by scope

    def ask(self, request: Hostile, key: str | None = None) -> int:
        """Status; by default with a key that may just do it."""
        if key is None:
            key = self.keys[needed_scope(request.method, request.target.partition("?")[0]) or "read"]
        headers = {"Authorization": f"Bearer {key}", **request.headers}
        return self.api.ask(request.method, request.target, headers, request.body)

    def cost(self, request: Hostile) -> tuple[int, Cost]:
        """Status, and the least that it cost in up to three attempts."""
        costs: list[Cost] = []
        status = 0
        while len(costs) < 3:
            with self.api.measuring() as measured:
                status = self.ask(request)
            costs += measured
            least = Cost(min(cost.megabytes for cost in costs), min(cost.seconds for cost in costs))
            if least.megabytes <= MEGABYTES and least.seconds <= SECONDS:
                break
        return status, least


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    settings = Settings(
        home=tmp_path_factory.mktemp("home"), memory_limit="4GB", min_free_bytes=0, require_key=True,
        upload_wait_seconds=0, rate_per_second=1e6, rate_burst=10**6,
    )  # fmt: skip
    store = open_store(settings)
    furnish(store, settings)
    make_export(settings.run_directory(LARGE), ROWS, DIM, labels=50)
    put_job(store, LARGE)
    row = store.embeddings.get(LARGE)
    assert row is not None
    folder = publish(settings.run_directory(LARGE), settings.home, LARGE)
    store.embeddings.finish(LARGE, row.job_id, about=about_version(read_info(folder)))
    log = settings.run_directory("running") / "log.txt"
    log.write_bytes(b"x" * 50_000_000 + b"\n" * 1_000_000)
    keys = {scope: store.keys.create(scope, frozenset({scope}))[1] for scope in ("read", "submit", "admin")}
    with measured_api(settings) as api:
        made = Attacked(api, settings, keys)
        for request in valid_requests():  # what is loaded at first use is no cost of theirs
            if request.name.startswith(("lookup as", "neighbors as")):
                made.ask(request)
        yield made
    store.close()


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_no_request_costs_more_than_its_budget(attacked: Attacked) -> None:
    document = create_app(attacked.settings).openapi()
    before, began = attacked.api.memory("VmRSS"), time.monotonic()
    found = [(request.name, *attacked.cost(request)) for request in hostile_requests(document)]
    grown = attacked.api.memory("VmRSS") - before
    print(f"\n{len(found)} requests in {time.monotonic() - began:.0f} s; {grown:.0f} MB more than before")  # noqa: T201
    for what, number in (("megabytes", lambda item: item[2].megabytes), ("seconds", lambda item: item[2].seconds)):
        for name, status, cost in sorted(found, key=number, reverse=True)[:8]:
            print(f"{what}: {cost.megabytes:6.1f} MB {cost.seconds:6.3f} s  {status}  {name}")  # noqa: T201
    assert len(found) > 1_000
    wrong = [item for item in found if item[2].megabytes > MEGABYTES or item[2].seconds > SECONDS]
    assert not wrong, f"over {MEGABYTES} MB or {SECONDS} s: {wrong}"
    errors = [item for item in found if item[1] in (0, 500)]
    assert not errors, f"no answer, or an internal error: {errors}"
    assert grown < LEFT_MEGABYTES


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_requests_at_once_stay_within_a_budget(attacked: Attacked) -> None:
    heavy = [request for request in valid_requests() if "classify" not in request.name]
    statuses: list[int] = []
    costs = []
    for _ in range(3):
        with attacked.api.measuring() as measured, ThreadPoolExecutor(24) as pool:
            statuses += pool.map(attacked.ask, heavy * 3)
        costs += measured
        least = Cost(min(cost.megabytes for cost in costs), min(cost.seconds for cost in costs))
        if least.megabytes <= MEGABYTES_TOGETHER and least.seconds <= SECONDS:
            break
    print(f"\n{3 * len(heavy)} requests, 24 at a time: {least.megabytes:.0f} MB, {least.seconds:.3f} s")  # noqa: T201
    assert 200 in statuses
    assert least.megabytes <= MEGABYTES_TOGETHER
    assert least.seconds <= SECONDS
    assert not {0, 500} & set(statuses)


def test_bodies_that_never_end_are_held_up_to_a_limit_for_each_key(attacked: Attacked) -> None:
    """8 MB less one byte, on a hundred connections: 800 MB."""
    head = (
        f"POST {QUESTION} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {attacked.keys['submit']}\r\n"
        "Content-Type: application/json\r\nContent-Length: 8000000\r\n\r\n"
    )
    question = Hostile("", "POST", QUESTION, JSON, b'{"k": 1, "ids": [' + b"7, " * 40_000 + b"7]}")
    refused = 0
    with attacked.api.measuring() as costs, ExitStack() as stack:
        for _ in range(100):
            link = stack.enter_context(socket.create_connection(("127.0.0.1", attacked.api.port), timeout=60))
            link.sendall(head.encode())
            try:
                link.sendall(b" " * 7_999_999)
            except OSError:
                refused += 1  # answered, and closed
        assert attacked.ask(question, attacked.keys["submit"]) == 429, "it is this key's bodies that are too many"
        assert attacked.ask(question, attacked.keys["read"]) == 422, "others are read (there are too many ids)"
    print(f"\n100 bodies that never end: {costs[0].megabytes:.0f} MB, {costs[0].seconds:.3f} s, {refused} refused")  # noqa: T201
    assert refused > 80
    assert costs[0].megabytes < MEGABYTES
