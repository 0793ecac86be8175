"""Who may do what: keys, scopes, owners, Host and Origin."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable

import httpx
import pytest

from service.api import security
from tests.service.api.server import SMALL, Live
from tests.service.api.test_problems import checked, database_away

PUBLIC = {("get", "/livez"), ("get", "/readyz")}
REQUEST_BODIES = (  # posed in a body, but they change nothing
    "/lookup", "/neighbors", "/recommend", "/scores", "/compare", "/embed", "/classify", "/estimates",
)  # fmt: skip


@pytest.fixture
def locked(serve: Callable[..., Live]) -> Live:
    """A server that asks for keys."""
    return serve(require_key=True)


def key(live: Live, *scopes: str, expires: float | None = None) -> dict[str, str]:
    """The header of a new key."""
    _, text = live.store.keys.create("test", scopes, expires)
    return {"Authorization": f"Bearer {text}"}


def operations(live: Live, headers: dict[str, str]) -> list[tuple[str, str]]:
    """Every method and path of the OpenAPI document, with something in place of parameters, and what it leaves out."""
    document = live.http.get("/openapi.json", headers=headers).json()
    listed = [(method, re.sub(r"\{\w+\}", "x", path)) for path, item in document["paths"].items() for method in item]
    return [*listed, ("get", "/openapi.json"), ("get", "/docs"), ("get", "/nothing"), ("post", "/nothing")]


def test_every_route_asks_for_a_key(locked: Live) -> None:
    for method, path in operations(locked, key(locked, "read")):
        response = locked.http.request(method, path)
        if (method, path) in PUBLIC:
            assert response.status_code in (200, 503)
            continue
        checked(response, 401)
        assert response.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
@pytest.mark.parametrize(
    "text",
    [
        "Bearer nml_000000000000_" + 64 * "0", "Bearer", "Bearer ", "Basic bm1sOm5tbA==", "nml_x_y", "Bearer \xff",
        "Bearer " + "n" * 10_000, "Bearer nml_000000000000_' OR 1=1 --",
    ],
)  # fmt: skip
def test_wrong_key_is_refused_even_where_none_is_needed(shared: Live, name: str, text: str) -> None:
    value = text if name == "authorization" else text.removeprefix("Bearer ")
    for method, path in [("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/metrics")]:
        response = shared.http.request(method, path, headers=[(name.encode(), value.strip().encode("latin-1"))])
        checked(response, 401)


def test_scopes(locked: Live) -> None:
    reads, submits, admin = key(locked, "read"), key(locked, "submit"), key(locked, "admin")
    for method, path in operations(locked, reads):
        status = locked.http.request(method, path, headers=reads).status_code
        if method == "get" or path.endswith(REQUEST_BODIES):
            assert status not in (401, 403), path
        else:
            assert status == 403, path
            assert locked.http.request(method, path, headers=submits).status_code not in (401, 403), path
    for headers in (submits, admin):
        assert locked.http.get("/v1/jobs", headers=headers).status_code == 200
        assert locked.http.post("/v1/jobs", json=SMALL, headers=headers).status_code == 202
    other = {"X-API-Key": submits["Authorization"].removeprefix("Bearer ")}
    assert locked.http.get("/v1/jobs", headers=other).status_code == 200


def test_what_another_key_made_needs_admin(locked: Live) -> None:
    mine, theirs, admin = key(locked, "submit"), key(locked, "submit"), key(locked, "admin")
    first, second = (locked.http.post("/v1/jobs", json=SMALL, headers=mine).json() for _ in range(2))
    assert first["owner"] == mine["Authorization"].split("_")[1]
    for method, path in [("POST", f"/v1/jobs/{first['id']}/cancel"), ("DELETE", f"/v1/jobs/{first['id']}")]:
        checked(locked.http.request(method, path, headers=theirs), 403)
    checked(locked.http.patch(f"/v1/jobs/{first['id']}", json={"priority": 1}, headers=theirs), 403)
    assert locked.http.patch(f"/v1/jobs/{first['id']}", json={"priority": 1}, headers=mine).status_code == 200
    assert locked.http.get(f"/v1/jobs/{first['id']}", headers=theirs).status_code == 200
    assert locked.http.post(f"/v1/jobs/{first['id']}/cancel", headers=mine).status_code == 202
    assert locked.http.delete(f"/v1/jobs/{first['id']}", headers=mine).status_code == 204
    assert locked.http.post(f"/v1/jobs/{second['id']}/cancel", headers=admin).status_code == 202
    assert locked.http.delete(f"/v1/jobs/{second['id']}", headers=admin).status_code == 204


def test_revoked_and_expired_keys_are_refused_soon(locked: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "KEPT_SECONDS", 0.05)
    end = time.time() + 600.0
    revoked, expired = key(locked, "read"), key(locked, "read", expires=end)
    for headers in (revoked, expired):
        assert locked.http.get("/v1/jobs", headers=headers).status_code == 200
    locked.store.keys.revoke(revoked["Authorization"].split("_")[1])
    time.sleep(0.1)
    monkeypatch.setattr(security.time, "time", lambda: end + 1.0)
    for headers in (revoked, expired):
        checked(locked.http.get("/v1/jobs", headers=headers), 401)


def test_figures_are_told_to_a_known_key_while_the_database_is_away(
    locked: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "KEPT_SECONDS", 0.0)
    known, unknown = key(locked, "read"), key(locked, "read")
    end = time.time() + 600.0
    expired = key(locked, "read", expires=end)
    for headers in (known, expired):
        assert locked.http.get("/metrics", headers=headers).status_code == 200
    with database_away(locked):
        monkeypatch.setattr(security.time, "time", lambda: end + 1.0)
        assert "nml_database_up 0.0" in locked.http.get("/metrics", headers=known).text
        for headers in (unknown, expired):
            checked(locked.http.get("/metrics", headers=headers), 503)
        checked(locked.http.get("/v1/jobs", headers=known), 503)
        checked(locked.http.get("/metrics"), 401)


def test_known_key_is_not_looked_up_each_time(locked: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "KEPT_SECONDS", 3_600.0)
    headers = key(locked, "read")
    asked: list[str] = []
    real = type(locked.store.keys).check
    monkeypatch.setattr(type(locked.store.keys), "check", lambda keys, text: asked.append(text) or real(keys, text))
    for _ in range(20):
        assert locked.http.get("/v1/jobs", headers=headers).status_code == 200
    assert len(asked) == 1


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:1234", "[::1]:8000", "LOCALHOST:80", "ours.example:9", "a.b.example"]
)
def test_own_names(serve: Callable[..., Live], host: str) -> None:
    live = serve(allowed_hosts=("ours.example", "*.b.example"))
    assert live.http.get("/v1/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "10.0.0.1", "localhost.evil.example", "evil.example:8000", "[::2]", "b"]
)
def test_other_names_are_refused(shared: Live, host: str) -> None:
    checked(shared.http.get("/v1/jobs", headers={"Host": host}), 421)
    assert shared.http.get("/livez", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("hosts", ["", "Host:\r\n", "Host: localhost\r\nHost: evil.example\r\n"])
def test_without_a_name_or_with_two(shared: Live, hosts: str) -> None:
    place = httpx.URL(shared.url)
    with socket.create_connection((place.host, place.port)) as connection:
        connection.sendall(f"GET /v1/jobs HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in answer


def test_addresses_in_figures_do_where_the_world_may_call(serve: Callable[..., Live]) -> None:
    live = serve(host="0.0.0.0", require_key=False)
    for host in ("192.168.7.9:8000", "[fe80::1]:8000"):
        assert live.http.get("/v1/jobs", headers={"Host": host}).status_code == 200
    checked(live.http.get("/v1/jobs", headers={"Host": "evil.example"}), 421)


def test_pages_of_other_places_are_refused(serve: Callable[..., Live]) -> None:
    live = serve(allowed_origins=("https://console.example",))
    own = live.url.rstrip("/")
    for origin in (own, own.upper()):
        assert live.http.get("/v1/jobs", headers={"Origin": origin}).status_code == 200
    for origin in ("https://evil.example", "null", "http://127.0.0.1", "file://", "https://console.example.evil", "//"):
        for method in ("GET", "POST", "OPTIONS"):
            checked(live.http.request(method, "/v1/jobs", headers={"Origin": origin}), 403)


def test_allowed_pages_get_what_browsers_need(serve: Callable[..., Live]) -> None:
    live = serve(allowed_origins=("https://console.example",), require_key=True)
    origin = {"Origin": "https://console.example"}
    asking = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    preflight = live.http.options("/v1/jobs", headers=origin | asking)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://console.example"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    assert preflight.headers["x-content-type-options"] == "nosniff"
    checked(live.http.options("/v1/jobs", headers=origin), 401)
    checked(live.http.get("/v1/jobs", headers=origin), 401)
    response = live.http.get("/v1/jobs", headers=origin | key(live, "read"))
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "https://console.example"
