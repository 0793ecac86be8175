"""Requests to one service: its address, the key, and patience while it restarts.

Only what may safely be sent twice goes through here: reads and searches, cancelling, deleting, uploads (named by their
content), moves of an alias, which say where it must point before or after, and submissions, which carry an
Idempotency-Key.
"""

from __future__ import annotations

import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from service.client._errors import ApiError, Unreachable
from service.net.addresses import is_loopback
from trainer.errors import Infrastructure, InvalidInput

BUSY = {429, 502, 503, 504}  # may be otherwise in a moment
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)  # no connection: nothing was done
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0  # seconds
CONNECT_SECONDS = 5.0
LONGEST_POLL = 2.0  # seconds

Notice = Callable[[str], None]


def polls(timeout: float | None = None) -> Iterator[None]:
    """Yield at once, then after pauses that grow to LONGEST_POLL, the last time when `timeout` seconds have passed."""
    until, pause = None if timeout is None else time.monotonic() + timeout, 0.1
    while True:
        yield
        left = pause if until is None else until - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(pause, left))
        pause = min(1.5 * pause, LONGEST_POLL)


class Patience:
    """Pauses that grow from one failure to the next; so many seconds after the first of a series it gives up.

    Args:
        seconds: for a service that is busy, or restarts.
        absence: for one that has not answered yet, as it may not be there at all.
    """

    def __init__(self, seconds: float, absence: float, notice: Notice | None):
        self._seconds, self._absence, self._notice = seconds, absence, notice
        self._pause = FIRST_PAUSE
        self._since: float | None = None
        self._has_answered = False

    def reset(self) -> None:
        """The service has answered: the next failure is a first one."""
        self._pause, self._since, self._has_answered = FIRST_PAUSE, None, True

    def pause(self, error: ApiError | Unreachable, at_least: float = 0.0) -> None:
        """Sleep before the next attempt; raise the error if waiting cannot help, or has been tried for long enough."""
        if isinstance(error, ApiError):
            hopeless, at_least = error.status not in BUSY, max(at_least, error.retry_after or 0.0)
            self._has_answered = True
        else:
            hopeless = error.for_good
        if hopeless:
            raise error
        now, is_first = time.monotonic(), self._since is None
        self._since = since = now if self._since is None else self._since
        limit = self._seconds if self._has_answered else self._absence
        seconds = max(at_least, self._pause * random.uniform(0.5, 1.0))  # so that many clients do not come at once
        if now + seconds > since + limit:
            raise error
        if is_first and self._notice is not None:  # only now that another attempt is certain
            self._notice(f"{error} Trying again for up to {limit:g} s.")
        time.sleep(seconds)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


class Session:
    """An open connection pool to one address."""

    def __init__(
        self,
        url: str,
        key: str | None,
        *,
        timeout: float,
        patience: float,
        absence: float | None,
        notice: Notice | None,
        transport: httpx.BaseTransport | None,
    ):
        self.url, self._notice = _address(url), notice
        self._seconds, self._absence = patience, patience if absence is None else absence
        headers = {"Accept": "application/json, application/problem+json"}
        if key:
            if not (key.isascii() and key.isprintable()) or " " in key:
                raise InvalidInput("the API key has invalid characters; copy it as `nml keys create` printed it")
            headers["Authorization"] = f"Bearer {key}"
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
            transport=transport,
            follow_redirects=False,  # a redirect must never carry the key to another host
            trust_env=not is_loopback(httpx.URL(self.url).host),  # no proxy can reach this machine's own loopback
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def patience(self) -> Patience:
        """For a caller with a loop of its own."""
        return Patience(self._seconds, self._absence, self._notice)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer, read whole; asked again while the service is busy or away. `options` are httpx's.

        Raises:
            ApiError: the service refused; `may_be_done` if that may be because an earlier attempt was carried out.
            Unreachable: no answer, for as long as patience lasts.
        """
        patience, may_be_done = self.patience(), False
        while True:
            try:
                with self.opened(method, path, **options) as response:
                    response.read()
                    return response
            except ApiError as error:
                error.may_be_done = may_be_done
                patience.pause(error)
                may_be_done |= error.status != httpx.codes.TOO_MANY_REQUESTS  # which refuses before anything is done
            except Unreachable as error:
                patience.pause(error)
                may_be_done |= error.sent

    def document(self, method: str, path: str, **options: Any) -> Any:
        """As `request`; the JSON document in the answer."""
        return self.parsed(self.request(method, path, **options))

    def parsed(self, response: httpx.Response) -> Any:
        """The JSON document in an answer.

        Raises:
            Infrastructure: it is something else, so something else than our service has answered.
        """
        try:
            return response.json()
        except ValueError as error:
            kind = response.headers.get("content-type", "something without a type")
            raise Infrastructure(
                f"{self.url} sent {kind} instead of JSON, so it is not this service; check --url"
            ) from error

    def delete(self, path: str) -> None:
        """As `request`; that the thing is gone is no failure if an attempt of ours may have removed it."""
        try:
            self.request("DELETE", path)
        except ApiError as error:
            if not (error.may_be_done and error.status == httpx.codes.NOT_FOUND):
                raise

    @contextmanager
    def opened(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """An answer whose body is still to be read. Tried once; fails as `request` does, also while it is read."""
        try:
            with self._http.stream(method, path, **options) as response:
                if not response.is_success:
                    response.read()
                    raise self._refusal(response)
                yield response
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            sent = not isinstance(error, _UNSENT)
            raise Unreachable(self.url, reason, for_good=_is_for_good(error), sent=sent) from error

    def _refusal(self, response: httpx.Response) -> ApiError:
        status = response.status_code
        if response.is_redirect:
            place = response.headers.get("location", "another address")
            return ApiError(status, "redirect", f"{self.url} redirects to {place}; use that as --url or NML_URL")
        problem = _problem(response)
        title = str(problem.get("title") or response.reason_phrase or "refused")
        errors = [entry for entry in problem.get("errors") or () if isinstance(entry, dict)]
        return ApiError(status, title, str(problem.get("detail") or ""), errors, _seconds(response))


def _address(url: str) -> str:
    """The address in the form in which paths can be joined to it."""
    try:
        parsed = httpx.URL(url.strip())
    except httpx.InvalidURL as error:
        raise InvalidInput(f"{url}: not a valid address ({error}); write it as http://host:8000") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query or parsed.userinfo:
        raise InvalidInput(f"{url}: not a valid address; write it as http://host:8000")
    return str(parsed).rstrip("/")


def _problem(response: httpx.Response) -> Mapping[str, Any]:
    """The problem document; empty where something else than our service answers."""
    try:
        document = response.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _seconds(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else None


def _is_for_good(error: BaseException | None) -> bool:
    """Whether the same request would fail in the same way for as long as one waits."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError | httpx.LocalProtocolError | httpx.UnsupportedProtocol):
            return True
        if isinstance(error, socket.gaierror) and error.errno != socket.EAI_AGAIN:
            return True
        error = error.__cause__ or error.__context__
    return False
