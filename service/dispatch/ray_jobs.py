"""The part of the Ray Jobs REST API that a runner needs: submit, status, stop, delete. Does not import Ray.

We authenticate as everywhere here (trainer.parallel.connection): by the token in RAY_AUTH_TOKEN, in the file
RAY_AUTH_TOKEN_PATH or in ~/.ray/auth_token, unless RAY_AUTH_MODE=disabled.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from service.dispatch.runner import Refused
from trainer.errors import Infrastructure, InvalidInput
from trainer.parallel.connection import ray_environment

# Short, because a dispatcher waits for the answers one by one and must renew its leases meanwhile.
TIMEOUT = httpx.Timeout(5.0, connect=3.0)
SUBMIT_TIMEOUT = httpx.Timeout(10.0, connect=3.0)  # the first takes seconds, until the head's agent has connected
REST_SECONDS = 5.0  # after a failure to reach the head, in which calls fail at once
MESSAGE_CHARACTERS = 2_000  # of Ray's messages, which may contain whole logs


class RayUnavailable(Infrastructure, OSError):
    """The cluster cannot be reached at the moment. What runs there may go on."""


class TokenRefused(RayUnavailable):
    """The cluster refused our token."""


class RayRefused(Infrastructure, Refused):
    """The cluster refused a job as it is; nothing was started."""


class MaybeSubmitted(Infrastructure, OSError):
    """The connection or the head failed during a submission: only its status tells whether it arrived."""


class RayJobs:
    """The jobs of one cluster, by submission id. Safe to use from several threads."""

    def __init__(self, url: str, environ: Mapping[str, str], *, home: Path | None = None):
        """Raises InvalidInput if `url` is not an address, or if a token is needed and there is none."""
        self.url = url.rstrip("/")
        if not _is_plain_address(self.url):
            raise InvalidInput(
                f"ray_jobs_url is {url!r}, which is not the address of a Ray dashboard. "
                "Give one such as http://head:8265, without a user name or token in it."
            )
        self._environ, self._home = environ, home or Path.home()
        self.token_mode = ray_environment(environ, self.url, home=home)["RAY_AUTH_MODE"]
        self._client = httpx.Client()
        logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for every request is too many
        self._failure: tuple[float, RayUnavailable] | None = None  # when, and what

    def submit(self, submission_id: str, request: Mapping[str, Any]) -> None:
        """Have the cluster run request["entrypoint"], unless there is a submission with this id already.

        Raises:
            RayUnavailable: it was not submitted.
            RayRefused: it was not submitted, and never will be as it is.
            MaybeSubmitted: it may have been submitted.
        """
        body = {"submission_id": submission_id, **request}
        try:
            response = self._call("POST", "/api/jobs/", body=body, timeout=SUBMIT_TIMEOUT)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise self._unavailable(error) from error
        except httpx.RequestError as error:
            self._unavailable(error)
            raise MaybeSubmitted(f"the connection to Ray at {self.url} broke ({error!r})") from error
        if response.is_success or f"{submission_id} already exists" in response.text:
            return
        if response.is_server_error:
            raise MaybeSubmitted(f"Ray at {self.url} answered {_answer(response)}")
        raise RayRefused(f"Ray at {self.url} refused the job: {_answer(response)}")

    def status(self, submission_id: str) -> dict[str, Any] | None:
        """What Ray knows of a submission: `status`, `message`, `error_type`, `driver_exit_code`, …; None: nothing.

        Raises:
            RayUnavailable: the cluster cannot be reached.
        """
        response = self._ask("GET", f"/api/jobs/{submission_id}")
        if response.status_code == 404:
            return None
        try:
            document = response.json()
            str(document["status"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._unavailable(f"the answer is not a Ray dashboard's: {response.text[:80]!r}") from error
        return dict(document)

    def stop(self, submission_id: str) -> None:
        """SIGTERM to all processes of a job, SIGKILL after its RAY_JOB_STOP_WAIT_TIME_S; nothing if it has ended.

        Raises:
            RayUnavailable: the cluster cannot be reached.
        """
        self._ask("POST", f"/api/jobs/{submission_id}/stop")

    def delete(self, submission_id: str) -> None:
        """Forget a submission that has ended, so that its id is free.

        Raises:
            RayUnavailable: the cluster cannot be reached.
        """
        self._ask("DELETE", f"/api/jobs/{submission_id}")

    def close(self) -> None:
        self._client.close()

    def _ask(self, method: str, path: str) -> httpx.Response:
        """A response that is a success or a 404; anything else tells nothing about the job."""
        try:
            response = self._call(method, path)
        except httpx.RequestError as error:
            raise self._unavailable(error) from error
        if not response.is_success and response.status_code != 404:
            raise self._unavailable(_answer(response))
        return response

    def _call(self, method: str, path: str, *, body: object = None, timeout: httpx.Timeout = TIMEOUT) -> httpx.Response:
        failure = self._failure
        if failure is not None and time.monotonic() - failure[0] < REST_SECONDS:
            raise type(failure[1])(str(failure[1]))
        response = self._client.request(method, self.url + path, headers=self._headers(), json=body, timeout=timeout)
        if response.status_code in (401, 403):
            refused = (
                f"it refused the token (RAY_AUTH_MODE is {self.token_mode}). "
                "Set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's token."
            )
            raise self._unavailable(refused, TokenRefused)
        self._failure = None
        return response

    def _headers(self) -> dict[str, str]:
        """Reads the token each time, because a mounted secret may change."""
        if self.token_mode != "token":
            return {}
        token = self._environ.get("RAY_AUTH_TOKEN")
        if not token:
            file = Path(self._environ.get("RAY_AUTH_TOKEN_PATH") or self._home / ".ray" / "auth_token")
            try:
                token = file.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise self._unavailable(f"cannot read its token: {error}") from error
        token = token.strip()
        if not token or not token.isascii() or not token.isprintable():  # httpx would show it in its error
            raise self._unavailable("its token is empty or contains invalid characters", TokenRefused)
        return {"Authorization": f"Bearer {token}"}

    def _unavailable(self, what: object, kind: type[RayUnavailable] = RayUnavailable) -> RayUnavailable:
        error = kind(f"cannot reach Ray at {self.url}: {what if isinstance(what, str) else repr(what)}")
        self._failure = (time.monotonic(), error)
        return error


def _is_plain_address(url: str) -> bool:
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return parts.scheme in ("http", "https") and bool(parts.host) and not parts.userinfo and not parts.query


def _answer(response: httpx.Response) -> str:
    return f"{response.status_code}, {tail(response.text)}"


def tail(text: str) -> str:
    """The end of a message of Ray's, which starts with traces and ends with the reason."""
    text = text.strip()
    return text if len(text) <= MESSAGE_CHARACTERS else f"…{text[-MESSAGE_CHARACTERS:]}"
