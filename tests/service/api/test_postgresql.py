"""The same API on PostgreSQL, where reading may wait and the server may go away."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest

from service.api.schemas import JobDocument
from tests import postgres
from tests.service.api.server import SMALL, Live
from tests.service.api.test_events import numbers, until, watching
from tests.service.api.test_problems import checked

pytestmark = pytest.mark.skipif(postgres.MISSING, reason=postgres.MISSING_REASON)


@pytest.fixture(scope="module")
def database() -> Iterator[postgres.PostgreSQL]:
    with postgres.running() as server:
        yield server


@pytest.fixture
def live(serve: Callable[..., Live], database: postgres.PostgreSQL) -> Live:
    return serve(database_url=database.new_database(f"t{secrets.token_hex(6)}"))


def test_from_submission_to_deletion(live: Live) -> None:
    assert not live.store.reads_inline
    made = live.http.post("/v1/jobs", json=SMALL, headers={"Idempotency-Key": "one"}).json()
    again = live.http.post("/v1/jobs", json=SMALL, headers={"Idempotency-Key": "one"})
    assert again.json() == made
    assert again.headers["idempotent-replayed"] == "true"
    watchers = watching(live, made["id"], *[0] * 8)
    job = live.claim(made["id"])
    live.tell(job, *range(1, 601), metrics={"loss": 0.1})
    live.finish(job)
    assert all(numbers(watcher.result(60)) == list(range(1, 604)) for watcher in watchers)
    shown = live.http.get(f"/v1/jobs/{job.id}").json()
    JobDocument.model_validate(shown)
    assert (shown["state"], shown["metrics"]) == ("succeeded", {"loss": 0.1})
    assert [item["id"] for item in live.http.get("/v1/jobs").json()["items"]] == [job.id]
    assert len(live.http.get(f"/v1/jobs/{job.id}/metrics").json()["epochs"]) == 600
    assert 'nml_jobs{kind="train",state="succeeded"} 1.0' in live.http.get("/metrics").text
    checked(live.http.post("/v1/jobs", json=SMALL | {"run": {"name": "a\0b"}}), 422)
    assert live.http.delete(f"/v1/jobs/{job.id}").status_code == 204


def test_database_that_goes_and_comes_back(live: Live, database: postgres.PostgreSQL) -> None:
    live.submit()
    job = live.claim()
    watchers = watching(live, job.id, 0, 0, 0, 0)
    live.tell(job, 1)
    database.kill()
    for method, path in [("GET", f"/v1/jobs/{job.id}"), ("GET", "/v1/jobs"), ("POST", f"/v1/jobs/{job.id}/cancel")]:
        response = live.http.request(method, path)
        checked(response, 503)
        assert "retry-after" in response.headers
    checked(live.http.post("/v1/jobs", json=SMALL), 503)
    assert live.http.get("/livez").status_code == 200
    database.start()
    until(lambda: live.http.get(f"/v1/jobs/{job.id}").status_code == 200)
    live.tell(job, 2)
    live.finish(job)
    assert [numbers(watcher.result(60)) for watcher in watchers] == [[1, 2, 3, 4, 5]] * 4
