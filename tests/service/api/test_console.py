"""The console's files: the same for everybody, only those in the folder, nothing that a strict browser would refuse."""

from __future__ import annotations

import re
import socket
import tomllib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from service.api.console import FOLDER, files
from tests.service.api.server import Live

MOST_BYTES = 200_000  # of all scripts and styles
TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}


def test_the_start_page_is_at_the_root(live: Live):
    answer = live.http.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.content == (FOLDER / "index.html").read_bytes()


def test_every_file_comes_with_type_tag_and_a_strict_policy(live: Live):
    assert len(files()) > 10
    for address, file in files().items():
        answer = live.http.get(address)
        assert answer.status_code == 200, address
        assert answer.content == file.content
        if address != "/":
            assert answer.headers["content-type"] == TYPES[address[address.rindex(".") :]]
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert "unsafe" not in answer.headers["content-security-policy"]


def test_a_browser_that_has_a_file_is_told_so(live: Live):
    tag = live.http.get("/console/app.js").headers["etag"]
    again = live.http.get("/console/app.js", headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert live.http.get("/console/app.js", headers={"If-None-Match": '"other"'}).status_code == 200
    assert live.http.get("/", headers={"If-None-Match": tag}).status_code == 200


def test_head_has_the_headers_alone(live: Live):
    got, asked = live.http.get("/"), live.http.head("/")
    assert (asked.status_code, asked.content) == (200, b"")
    for name in ("content-type", "content-length", "etag", "content-security-policy"):
        assert asked.headers[name] == got.headers[name]


@pytest.mark.parametrize(
    "target",
    [
        "/console/index.html", "/console/", "/console", "/console/absent.js", "/console/lib", "/console//app.js",
        "/console/../settings.py", "/console/..%2fsettings.py", "/console/%2e%2e/app.py", "/console/lib/../app.js",
        "/console/..%5c..%5capp.py", "/console//etc/passwd", "/console/app.js/", "/console/APP.JS",
    ],
)  # fmt: skip
def test_nothing_else_is_served(live: Live, target: str):
    place = urlsplit(live.url)
    with socket.create_connection((place.hostname or "", place.port or 80), timeout=60) as connection:
        request = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"  # sent as it stands
        connection.sendall(request.encode())
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.split(b" ")[1] == b"404", answer[:200]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_files_can_only_be_read(live: Live, method: str):
    assert live.http.request(method, "/").status_code == 405


def test_the_pages_need_no_key_and_the_api_behind_them_does(serve: Callable[..., Live]):
    live = serve(require_key=True)
    for address in files():
        assert live.http.get(address).status_code == 200, address
        assert live.http.head(address).status_code == 200, address
        assert live.http.post(address).status_code == 401, address
    assert live.http.get("/", headers={"X-Forwarded-For": "10.0.0.1"}).status_code == 200
    assert live.http.get("/console/absent.js").status_code == 401
    assert live.http.get("/v1/jobs").status_code == 401
    assert live.http.get("/", headers={"Authorization": "Bearer nml_wrong"}).status_code == 401


def test_the_pages_too_are_only_for_our_own_host_name(live: Live):
    """Else a page of another site could have them by a name that it controls."""
    assert httpx.get(live.url, headers={"Host": "evil.example"}).status_code == 421


def test_scripts_and_styles_are_small():
    sizes = {address: len(file.content) for address, file in files().items() if address.endswith((".js", ".css"))}
    assert sum(sizes.values()) < MOST_BYTES


def test_every_file_is_packaged(repo_root: Path):
    project = tomllib.loads((repo_root / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["service"]
    packaged = {path for pattern in patterns for path in FOLDER.parent.glob(pattern) if path.is_file()}
    assert len(packaged) == len(files())
    assert {path.read_bytes() for path in packaged} == {file.content for file in files().values()}


def test_pages_load_only_what_is_there():
    """Every import and every address in a page names a file of the console, a page of ours, or a route."""
    for address, file in files().items():
        if not address.endswith(".js"):
            continue
        folder = address[: address.rindex("/")]
        for name in re.findall(r'^import .* from "(.+)";$', file.content.decode(), re.MULTILINE):
            assert httpx.URL(f"http://x{folder}/").join(name).path in files(), (address, name)
    start = files()["/"].content.decode()
    loaded = re.findall(r'(?:src|href)="(/console/[^"]+)"', start)
    assert len(loaded) >= 3
    assert set(loaded) <= set(files())


def test_no_text_is_ever_read_as_html_or_as_a_script():
    """The policy refuses it in browsers that know trusted types; this refuses it in all of them."""
    ways = r"innerHTML|outerHTML|AdjacentHTML|document\.write|Fragment\(|DOMParser|srcdoc|\beval\(|new Function"
    found = {
        address: names
        for address, file in files().items()
        if address.endswith(".js") and (names := re.findall(ways, file.content.decode()))
    }
    assert found == {}
    start = files()["/"].content.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|style=|<style|https?://", start)
