"""The one gate of the app: plain ASGI, outside every route, so that nothing can be forgotten and little is spent.

In order: Host, Origin, key, rate, scope, size of the body. What passes is routed; whatever comes back, an answer or
an exception, leaves with the security headers, a request id and its time counted.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api import console
from service.api.edge.hosts import Hosts
from service.api.edge.limits import BodiesHeld, Body, Buckets, capped, check_announced, question_bytes
from service.api.edge.metrics import RequestMetrics
from service.api.problems import REQUEST_ID, Problem, problem_of, problem_response
from service.api.responses import UNCOUNTED_BYTES
from service.api.security import (
    ANYONE,
    CALLER,
    PUBLIC,
    SAFE_METHODS,
    Caller,
    Keyring,
    check_scope,
    given_key,
    needed_scope,
    question_of,
    unauthorized,
)
from service.api.shares import asked_by
from service.net.bounded_http import ROOM
from service.net.places import Room
from service.settings import Settings
from service.store.errors import Unavailable

UPLOADS, METRICS = "/v1/datasets", "/metrics"
HEADER_LINES = 200
FORM_BYTES = 1_000_000  # what a multipart form may add to the files in it
# by which proxies tell whom they speak for
FORWARDING = frozenset(
    (b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip")
)
_FORWARDED = (
    "the header {} shows that this request came through a proxy, and without a key the service trusts only clients on "
    "its own machine. Send a key (nml keys create); or, if everyone who reaches the proxy may do everything, start the "
    "service with NML_REQUIRE_KEY=false"
)
_CSP, _CACHE = b"content-security-policy", b"cache-control"
_STRICT = b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_NO_STORE = b"no-store"  # unless a route knows better
_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_END = {"type": "http.response.body", "body": b""}

log = logging.getLogger("service.api")


class Guard:
    """Wraps the app."""

    def __init__(self, app: ASGIApp, *, settings: Settings, metrics: RequestMetrics):
        self._app, self._settings, self._metrics = app, settings, metrics
        self._hosts = Hosts(settings)
        self.bodies = BodiesHeld()
        self._in_progress: Counter[str] = Counter()  # requests, by the id of their key
        self._buckets = Buckets(settings.rate_per_second, settings.rate_burst)
        self._keys_required, self._trusts_loopback = settings.keys_required, settings.trusts_loopback
        self._pages = frozenset(console.files())
        self._across: ASGIApp | None = None
        if settings.allowed_origins:
            self._across = CORSMiddleware(
                app, allow_origins=settings.allowed_origins, allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
                allow_headers=(
                    "Authorization", "Content-Type", "Idempotency-Key", "If-None-Match", "If-Range", "Last-Event-ID",
                    "Range", "X-API-Key",
                ),
                expose_headers=(
                    "Accept-Ranges", "Content-Disposition", "Content-Range", "ETag", "Idempotent-Replayed", "Location",
                    "Nml-Dimension", "Nml-Rows", "Nml-Unknown", "Nml-Version", "Retry-After", "X-Request-ID",
                ),
            )  # fmt: skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":  # there are none here, and they would pass by the checks below
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0
        request_id = scope[REQUEST_ID] = _new_id()

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = message.get("headers", ())
                names = {name for name, _ in given}
                headers = [*given, *_HEADERS, (b"x-request-id", request_id.encode())]
                if _CSP not in names:
                    headers.append((_CSP, _STRICT))
                if _CACHE not in names:
                    headers.append((_CACHE, _NO_STORE))
                message["headers"] = headers
                self._metrics.observe(scope.get("route"), scope["method"], status, time.perf_counter() - began)
            elif len(message.get("body", b"")) > UNCOUNTED_BYTES and not message.get("more_body"):
                await send({**message, "more_body": True})
                message = _END  # for which the server waits until the client has read nearly all
            await send(message)

        owner, body = None, None
        try:
            app = await self._admit(scope)
            owner = self._begin(scope)
            if scope["method"] not in SAFE_METHODS:
                receive = capped(receive, self._limit(scope["method"], scope["path"]))
                if scope["path"] != UPLOADS:  # those go to disk as they come
                    body = Body(receive, self.bodies, owner)
                    receive = body.receive
            await app(scope, receive, answer)
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 500:
                log.exception("request %s failed: %s %s", request_id, scope["method"], scope.get("route"))
            if status:  # too late for an answer; the server ends the connection
                raise
            await problem_response(problem, scope)(scope, receive, answer)
        finally:
            if body is not None:
                body.release()
            if owner is not None:
                self._in_progress[owner] -= 1
                if not self._in_progress[owner]:
                    del self._in_progress[owner]

    def _begin(self, scope: Scope) -> str | None:
        """Count the request as one of its key's, whose id is returned; Problem 429 where it has too many at a time."""
        owner: str | None = scope[CALLER].owner
        asked_by(owner)
        if owner is not None:
            if self._in_progress[owner] >= self._settings.max_requests_per_key:
                raise Problem(
                    429, f"this key has {self._settings.max_requests_per_key} requests in progress, and may have no "
                    "more (NML_MAX_REQUESTS_PER_KEY); wait for answers",
                    headers={"Retry-After": "2", "Connection": "close"}, kind="quota",
                )  # fmt: skip
            self._in_progress[owner] += 1
        return owner

    async def _admit(self, scope: Scope) -> ASGIApp:
        """Check all that can be checked before routing, and leave the caller in the scope.

        Returns:
            Who goes on with the request.

        Raises:
            Problem: it goes no further.
        """
        method, path, headers = scope["method"], scope["path"], scope["headers"]
        if len(headers) > HEADER_LINES:
            raise Problem(431, f"a request may have {HEADER_LINES} header lines", headers={"Connection": "close"})
        if "\0" in path or b"%00" in scope["query_string"]:  # PostgreSQL takes it in no text
            raise Problem(400, "the URL contains a NUL character")
        host = origin = length = forwarded = None
        hosts, asks_leave = 0, False
        for name, value in headers:
            if name == b"host":
                host, hosts = value, hosts + 1
            elif name == b"origin":
                origin = value
            elif name == b"content-length":
                length = value
            elif name == b"access-control-request-method":
                asks_leave = method == "OPTIONS"
            elif name in FORWARDING:
                forwarded = name
        if path not in PUBLIC:  # probes call by whatever address the machine has
            self._hosts.check_host(host if hosts == 1 else None)
        room = scope.get(ROOM, Room.ANYONE)
        if room is Room.PROBES and path not in PUBLIC:
            raise _full()
        foreign = origin is not None and self._hosts.check_origin(origin, host)
        if path == "/livez":  # alive, whatever else is wrong
            scope[CALLER] = ANYONE
            return self._app
        scope[CALLER] = caller = await self._identify(scope)
        if room is Room.KEYS and caller is ANYONE and path not in PUBLIC:
            raise _full()
        if not (foreign and asks_leave):  # a browser's preflight carries no key, and learns only what is allowed
            needs_key = path not in PUBLIC and not (method in ("GET", "HEAD") and path in self._pages)
            if caller is ANYONE and self._keys_required and needs_key:
                raise unauthorized("an API key is required: send it as Authorization: Bearer nml_…")
            if caller is ANYONE and self._trusts_loopback and forwarded is not None and needs_key:
                raise unauthorized(_FORWARDED.format(forwarded.decode()))
            check_scope(caller, needed_scope(method, path))
        if method not in SAFE_METHODS:
            check_announced(length, self._limit(method, path))
        return self._across if foreign and self._across is not None else self._app

    async def _identify(self, scope: Scope) -> Caller:
        """Who asks. A good key is charged for its own requests only, an address for those without one.

        Raises:
            Problem: 429, or 401 for a wrong key.
            Unavailable: the key cannot be looked up now.
        """
        text, address = given_key(scope["headers"]), (scope.get("client") or ("unknown",))[0]
        if text is None:
            self._charge(address)
            return ANYONE
        keyring: Keyring = scope["app"].state.nml.keyring
        caller = keyring.remembered(text)
        if caller is None:
            try:
                caller = await keyring.look_up(text)
            except Problem:
                self._charge(address)
                raise
            except Unavailable:
                # That the database is away is what it is for: a scrape that got 503 too would tell nobody.
                if scope["path"] != METRICS or (caller := keyring.good_before(text)) is None:
                    raise
        self._charge(caller.owner or address)
        return caller

    def _charge(self, client: str) -> None:
        """Raises Problem 429 if the client, a key's id or an address, has no request left."""
        wait = self._buckets.take(client)
        if wait > 0:
            self._metrics.refused.inc()
            raise Problem(
                429, f"more than {self._settings.rate_per_second:g} requests per second; wait a moment",
                headers={"Retry-After": str(int(wait) + 1)}, kind="rate-limit",
            )  # fmt: skip

    def _limit(self, method: str, path: str) -> int:
        """Bytes that a body may have."""
        if path == UPLOADS:
            return self._settings.max_upload_bytes + FORM_BYTES
        if (question := question_of(method, path)) is not None:
            return question_bytes(question, self._settings.max_query_bytes)
        return self._settings.max_body_bytes


def _full() -> Problem:
    detail = "too many connections are busy; try again in a moment"
    return Problem(503, detail, headers={"Retry-After": "2", "Connection": "close"}, kind="unavailable")


def _new_id() -> str:
    """A random UUID (version 4); written by hand because uuid.uuid4 takes several times as long."""
    text = os.urandom(16).hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"
