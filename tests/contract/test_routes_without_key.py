"""Where keys are required, nothing can be had or changed without one: every route, every method, every way around."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest

from service.settings import Settings
from tests.contract.stage import ALIAS, NODE, READY, VERSION, furnish
from tests.service.api.server import Live, serving

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY", "PROPFIND", "PURGE")
PROBES = {"/livez", "/readyz"}
THERE = {"job_id": "succeeded", "name": "loss.png", "file": "vectors.npy", "ref": READY}
THERE |= {"version": VERSION, "node": NODE, "alias": ALIAS}
UNLISTED = ("/openapi.json", "/docs", "/redoc", "/nothing", "/v1", "/v1/keys", "/console", "/console/", "/console/a.js")
CONSOLE = ("/", "/console/app.js")  # files that are the same for everybody
ROUND_ABOUT = (
    "/livez/", "//livez", "/LIVEZ", "/livez/../v1/jobs", "/livez%2f..%2fv1%2fjobs", "/v1/jobs?/livez",
    "/v1/jobs;/livez", "/v1/jobs/%2e%2e/%2e%2e/livez", "/readyz/v1/jobs", "/livez.json",
    "/%6civez/../metrics", "http://localhost/v1/jobs",
)  # fmt: skip
PRETENDING = (
    {"X-Forwarded-For": "127.0.0.1", "X-Real-IP": "127.0.0.1", "Forwarded": "for=127.0.0.1"},
    {"X-Original-URL": "/livez", "X-Rewrite-URL": "/livez", "X-Forwarded-Prefix": "/livez"},
    {"X-HTTP-Method-Override": "GET", "X-Forwarded-Host": "localhost", "Origin": ""},
    {"Cookie": "session=admin; nml=1", "X-Forwarded-User": "admin", "Remote-User": "admin"},
    {"Authorization": "Bearer nml_000000000000_" + "0" * 64},
    {"Authorization": "Basic YWRtaW46YWRtaW4="},
    {"X-API-Key": "nml_000000000000_" + "0" * 64},
)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server on loopback that asks for keys all the same."""
    home = tmp_path_factory.mktemp("home")
    settings = Settings(home=home, require_key=True, memory_limit="8GB", rate_per_second=1e6, rate_burst=10**6)
    with serving(settings) as server:
        furnish(server.store, settings)
        yield server


def paths(live: Live) -> list[str]:
    """Every path of the OpenAPI document, with what there is in place of its parameters, and some that it lacks."""
    sweeps = THERE | {"job_id": "sweep-succeeded"}
    listed = [path.format_map(sweeps if "/sweeps/" in path else THERE) for path in live.app.openapi()["paths"]]
    assert len(listed) > 20
    return [*listed, *UNLISTED]


def everything(live: Live) -> Any:
    store = live.store
    jobs = [store.jobs.list(kind=kind) for kind in ("train", "sweep", "publish", "index")]
    return jobs, store.datasets.list(), store.embeddings.list(), store.aliases.list()


def asked(live: Live, method: str, target: str, headers: dict[str, str]) -> tuple[int, bytes]:
    """Status and body; the target is sent as it stands."""
    place = httpx.URL(live.url)
    connection = HTTPConnection(place.host, place.port or 80, timeout=60)
    connection.request(method, target, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


@pytest.mark.parametrize("method", METHODS)
def test_every_route_and_method_is_refused(live: Live, method: str) -> None:
    before = everything(live)
    for path in paths(live):
        status, body = asked(live, method, path, {})
        if path in PROBES:
            assert status in ((200, 503) if method == "GET" else (405,)), path
            continue
        assert status == 401, path
        assert b"succeeded" not in body
        for headers in PRETENDING:
            assert asked(live, method, path, headers)[0] in (401, 403), (path, headers)
    assert everything(live) == before


@pytest.mark.parametrize("method", METHODS)
def test_of_the_console_only_its_files_can_be_had(live: Live, method: str) -> None:
    for path in CONSOLE:
        expected = (200,) if method in ("GET", "HEAD") else (401,)
        assert asked(live, method, path, {})[0] in expected, path
        for headers in PRETENDING:
            assert asked(live, method, path, headers)[0] in (*expected, 401, 403), (path, headers)


@pytest.mark.parametrize("target", ROUND_ABOUT)
def test_probes_are_no_way_around(live: Live, target: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        assert asked(live, method, target, {})[0] in (400, 401, 403, 421), method


def test_the_same_routes_answer_with_a_key(live: Live) -> None:
    """Else the refusals above would prove nothing."""
    headers = {"Authorization": f"Bearer {live.store.keys.create('all', ['admin'])[1]}"}
    listed = live.app.openapi()["paths"]
    for template, path in zip(listed, paths(live)[: len(listed)], strict=True):
        if "get" in listed[template]:
            assert asked(live, "GET", path, headers)[0] in (200, 503), path
