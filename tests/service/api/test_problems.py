"""Every error is a problem document, with the security headers, whatever causes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from service.api.problems import MAX_ERRORS, FieldError, Problem, problem_response
from service.api.responses import encode
from service.api.schemas import ProblemDocument
from service.app import create_app
from service.settings import Settings
from service.store.errors import Unavailable
from tests.service.api.server import SMALL, Live


def checked(response: httpx.Response, status: int) -> ProblemDocument:
    """The problem in a response, after looking at all that every problem must have."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = ProblemDocument.model_validate(response.json())
    assert problem.status == status
    assert problem.detail
    assert problem.instance == f"urn:uuid:{response.headers['x-request-id']}"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["x-frame-options"] == "DENY"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    return problem


@contextmanager
def database_away(live: Live) -> Iterator[None]:
    """Put a folder where SQLite's file was.

    Closed after every exchange too: the service looks by itself at any moment, and a connection made in between would
    be to a file that is no longer there, or to an empty one that SQLite has made.
    """
    live.store.close()
    database = live.settings.home / "service.db"
    database.rename(database.with_suffix(".away"))
    database.mkdir()
    live.store.close()
    try:
        yield
    finally:
        database.rmdir()
        database.with_suffix(".away").rename(database)
        live.store.close()


@pytest.mark.parametrize(
    "path", ["/console", "/v1", "/v1/jobs/", "/v2/jobs", "/v1/jobs/x/y/z", "/%2e%2e/etc/passwd", "/é"]
)
def test_unknown_address(shared: Live, path: str) -> None:
    checked(shared.http.get(path), 404)


ALLOWED = {
    "/v1/jobs": "GET, POST",
    "/v1/jobs/x": "DELETE, GET, PATCH",
    "/v1/sweeps/x/cancel": "POST",
    "/v1/datasets": "GET, POST",
    "/v1/datasets/x": "DELETE, GET",
    "/livez": "GET",
    "/metrics": "GET",
    "/openapi.json": "GET, HEAD",
}


@pytest.mark.parametrize(
    "path, method",
    [
        (path, method)
        for path, allowed in ALLOWED.items()
        for method in ("PUT", "PATCH", "OPTIONS", "TRACE", "PROPFIND")
        if method not in allowed
    ],
)
def test_wrong_method_names_all_that_are_allowed(shared: Live, path: str, method: str) -> None:
    response = shared.http.request(method, path)
    checked(response, 405)
    assert response.headers["allow"] == ALLOWED[path]


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "limit=1e400", "cursor=..%2f", "state=lost"])
def test_wrong_parameter_is_named(shared: Live, query: str) -> None:
    problem = checked(shared.http.get(f"/v1/jobs?{query}"), 422)
    assert problem.errors is not None
    assert problem.errors[0].field.split(".")[0] == query.partition("=")[0]


@pytest.mark.parametrize("address", ["/v1/jobs/%00", "/v1/jobs?dataset=%00", "/v1/datasets/a%00b", "/v1/jobs?x=%00"])
def test_nul_in_the_address(shared: Live, address: str) -> None:
    checked(shared.http.get(address), 400)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json; charset=utf-16"},
        {"content-type": "application/json", "content-encoding": "gzip"},
        {"content-type": "json"},
    ],
)
def test_other_types_of_body(shared: Live, headers: dict[str, str]) -> None:
    checked(shared.http.post("/v1/jobs", content=b"{}", headers=headers), 415)


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=UTF-8", "application/vnd.spec+json"])
def test_json_under_all_its_names(shared: Live, kind: str) -> None:
    response = shared.http.post("/v1/jobs", content=encode(SMALL), headers={"content-type": kind})
    assert response.status_code == 202


def test_body_too_large_by_its_announcement_or_while_it_comes(serve: Callable[..., Live]) -> None:
    live = serve(max_body_bytes=1_000)
    headers = {"content-type": "application/json"}
    announced = live.http.post("/v1/jobs", content=b" " * 1_001, headers=headers)
    assert "1,000 bytes" in checked(announced, 413).detail
    streamed = live.http.post("/v1/jobs", content=iter([b" " * 600] * 3), headers=headers)
    checked(streamed, 413)
    assert live.http.post("/v1/jobs", content=b'{"run": {}}'.ljust(1_000), headers=headers).status_code == 202


def test_unexpected_error_tells_nothing_of_the_inside(serve: Callable[..., Live]) -> None:
    live = serve()

    @live.app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("password=hunter2")

    problem = checked(live.http.get("/broken"), 500)
    assert "hunter2" not in problem.model_dump_json()
    assert "RuntimeError" not in problem.model_dump_json()


def test_while_the_database_is_away(live: Live) -> None:
    job = live.submit()
    with database_away(live):
        for method, path in [
            ("GET", "/v1/jobs"),
            ("GET", f"/v1/jobs/{job['id']}"),
            ("POST", f"/v1/jobs/{job['id']}/cancel"),
            ("DELETE", f"/v1/jobs/{job['id']}"),
            ("GET", f"/v1/jobs/{job['id']}/events"),
            ("GET", f"/v1/jobs/{job['id']}/metrics"),
            ("GET", "/v1/sweeps"),
        ]:
            response = live.http.request(method, path)
            checked(response, 503)
            assert int(response.headers["retry-after"]) > 0
        checked(live.http.post("/v1/jobs", json=SMALL), 503)
        assert live.http.get("/livez").status_code == 200
        assert "nml_database_up 0.0" in live.http.get("/metrics").text
        reasons = live.http.get("/readyz").json()["reasons"]
        assert "the database cannot be reached" in reasons
    assert live.http.get(f"/v1/jobs/{job['id']}").json()["state"] == "queued"


def test_rendering_cannot_fail() -> None:
    texts = ["\ud800", "\x00\x1b[31m", "a" * 10**6, "\u202e", "é" * 500]
    for text in texts:
        problem = Problem(422, text, errors=[FieldError(text, text)] * 1_000)
        document = ProblemDocument.model_validate_json(problem_response(problem, {}).body)
        assert document.errors is not None
        assert len(document.errors) == MAX_ERRORS
        assert len(document.detail) <= 1_000


def test_answers_survive_values_that_json_does_not_have() -> None:
    odd = {"nan": float("nan"), "inf": [float("-inf")], "half": "a\udc80b", "\ud800": 1, "large": 10**4_000}
    assert b"NaN" not in encode(odd)
    assert encode({"nan": float("nan")}) == b'{"nan":null}'
    encode(odd).decode("utf-8")


def test_database_that_cannot_be_opened_fails_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "service.db").mkdir()
    app = create_app(Settings(home=tmp_path))

    async def start() -> None:
        async with app.router.lifespan_context(app):
            raise AssertionError("it started")

    with pytest.raises(Unavailable):
        asyncio.run(start())
