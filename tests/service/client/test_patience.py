"""How long the client goes on, what it says meanwhile, and what it makes of attempts whose end it does not know."""

from __future__ import annotations

import httpx
import pytest

from service.client import ApiError, Client, Unreachable, _session
from tests.service.client.clock import Clock

ALIAS = {"name": "prod", "version": "v1", "seq": 2, "automatic": False, "history": [{"reason": "rollback"}]}


@pytest.fixture
def clock(monkeypatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(_session, "time", found)
    return found


class Service(httpx.MockTransport):
    """Answers with these statuses in turn, then with the last of them; what is no status is raised."""

    def __init__(self, *answers: int | type[httpx.TransportError], retry_after: int | None = None):
        super().__init__(self._answer)
        self.answers, self.requests = list(answers), list[str]()
        self._headers = {} if retry_after is None else {"Retry-After": str(retry_after)}

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request.method)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if not isinstance(answer, int):
            raise answer("lost")
        return httpx.Response(answer, headers=self._headers, json=ALIAS | {"title": "busy", "detail": "busy"})


def client_of(service: Service, patience: float, absence: float | None = None, said: list[str] | None = None) -> Client:
    notice = None if said is None else said.append
    return Client("http://127.0.0.1:1", key="", patience=patience, absence=absence, notice=notice, transport=service)


def test_another_attempt_is_announced_only_if_there_is_one(clock: Clock):
    said: list[str] = []
    service = Service(503, 200, retry_after=10)
    with client_of(service, 9, said=said) as client, pytest.raises(ApiError):
        client.vectors.alias("prod")
    assert (said, service.requests, clock.now) == ([], ["GET"], 0)
    service = Service(503, 200, retry_after=10)
    with client_of(service, 15, said=said) as client:
        assert client.vectors.alias("prod").version == "v1"
    assert said == ["busy (HTTP 503) Trying again for up to 15 s."]
    assert (service.requests, clock.now) == (["GET"] * 2, 10)


def test_a_service_that_was_never_there_is_given_up_sooner_than_a_busy_one(clock: Clock):
    said: list[str] = []
    with client_of(Service(httpx.ConnectError), 15, 5, said) as client, pytest.raises(Unreachable):
        client.vectors.alias("prod")
    assert 2 < clock.now <= 5
    assert said[0].endswith("for up to 5 s.")
    clock.now = 0.0
    with client_of(Service(503, httpx.ConnectError), 15, 5) as client, pytest.raises(Unreachable):
        client.vectors.alias("prod")  # it is there, and restarts
    assert 10 < clock.now <= 15
    clock.now = 0.0
    with client_of(Service(httpx.ConnectError), 15) as client, pytest.raises(Unreachable):
        client.vectors.alias("prod")
    assert 10 < clock.now <= 15


@pytest.mark.parametrize(
    "first, may_be_done",
    [
        (httpx.ReadError, True), (httpx.ReadTimeout, True), (502, True), (503, True), (504, True),
        (429, False), (httpx.ConnectError, False), (httpx.ConnectTimeout, False), (None, False),
    ],
)  # fmt: skip
def test_a_conflict_is_our_own_work_only_where_an_attempt_may_have_been_carried_out(clock: Clock, first, may_be_done):
    def outcome(call, *answers) -> int:
        with client_of(Service(*(answer for answer in answers if answer is not None)), 30) as client:
            try:
                call(client.vectors)
            except ApiError as error:
                return error.status
            return 200

    def set_it(vectors) -> None:
        assert vectors.set_alias("prod", "v1", expected="").version == "v1"

    assert outcome(set_it, first, 409, 200) == (200 if may_be_done else 409)
    assert outcome(lambda vectors: vectors.remove_alias("prod"), first, 404) == (200 if may_be_done else 404)
