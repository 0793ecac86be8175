"""Whatever is wrong with a request, the answer is a 4xx problem that names what to change, and nothing is stored."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import httpx
import pytest

from service.api.schemas import ProblemDocument
from service.settings import Settings
from tests.contract.bad_inputs import CORPORA
from tests.contract.bad_requests import BadRequest
from tests.contract.stage import furnish
from tests.service.api.server import Live, serving

SECRETS = ("root:x:0", "etc/passwd", "os.system", "Traceback", "sqlite", "psycopg")  # of ours, or the request repeated


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One server for all, furnished, on which no key is needed."""
    settings = Settings(
        home=tmp_path_factory.mktemp("home"), memory_limit="8GB", min_free_bytes=0, poll_seconds=0.02,
        rate_per_second=1e6, rate_burst=10**6,
    )  # fmt: skip
    with serving(settings) as server:
        furnish(server.store, settings)
        yield server


@pytest.fixture
def connection(live: Live) -> Iterator[HTTPConnection]:
    """Sends what it is told: httpx would tidy addresses and headers up."""
    place = httpx.URL(live.url)
    opened = HTTPConnection(place.host, place.port or 80, timeout=60)
    yield opened
    opened.close()


def test_corpus_is_large_and_has_no_case_twice() -> None:
    cases = [case for corpus in CORPORA.values() for case in corpus()]
    assert len({case[1:] for case in cases}) == len(cases) >= 2_500


@pytest.mark.parametrize("corpus", CORPORA)
def test_bad_input_is_refused_with_the_field_to_blame(live: Live, connection: HTTPConnection, corpus: str) -> None:
    before = everything(live)
    wrong = [complaint for case in CORPORA[corpus]() for complaint in complaints(connection, case)]
    assert not wrong, f"{len(wrong)} complaints\n" + "\n".join(wrong[:40])
    assert everything(live) == before


@pytest.mark.parametrize(
    "text",
    [
        b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"GET /livez SPDY/9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: a\x01b\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nBad Name: x\r\n\r\n",
        b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 200_000 + b"\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n",
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused_before_it_reaches_us(live: Live, text: bytes) -> None:
    """The server under the app refuses it, or hangs up."""
    place, before = httpx.URL(live.url), everything(live)
    with socket.create_connection((place.host, place.port), timeout=120) as connection:
        with contextlib.suppress(OSError):  # it may hang up before all is sent
            connection.sendall(text)
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(OSError):
            answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer[:200]
    assert live.http.get("/livez").status_code == 200
    assert everything(live) == before


def complaints(connection: HTTPConnection, case: BadRequest) -> list[str]:
    """What is not right about the answer."""
    answer, text = sent(connection, case)
    if answer.status not in case.statuses:
        return [f"{case.name}: {answer.status} instead of {case.statuses}: {text[:300]!r}"]
    if answer.headers["Content-Type"] != "application/problem+json":
        return [f"{case.name}: {answer.headers['Content-Type']}: {text[:100]!r}"]
    problem = ProblemDocument.model_validate_json(text)
    found = []
    if problem.status != answer.status or not problem.detail:
        found.append(f"{case.name}: the document says {problem.status} {problem.detail!r}")
    if case.field is not None and not _names(problem, case.field):
        found.append(f"{case.name}: {case.field} is not named by {problem.errors or problem.detail}")
    found += [f"{case.name}: tells {secret!r}: {text[:300]!r}" for secret in SECRETS if secret.encode() in text]
    return found


def _names(problem: ProblemDocument, field: str) -> bool:
    """Whether the field is named; a part of it also does, such as one value of a list."""
    if problem.errors is not None:
        fields = [error.field for error in problem.errors]
        return any(name == field or name.startswith(f"{field}.") for name in fields)
    return problem.status != 422 and field in problem.detail.casefold()


def sent(connection: HTTPConnection, case: BadRequest) -> tuple[HTTPResponse, bytes]:
    """The answer, read whole."""
    connection.putrequest(case.method, case.target.decode("ascii"), skip_host=True, skip_accept_encoding=True)
    hosts = (f"{connection.host}:{connection.port}".encode(),) if case.hosts is None else case.hosts
    for host in hosts:
        connection.putheader("Host", host)
    for name, value in case.headers:
        connection.putheader(name, value)
    if case.body is not None:
        connection.putheader("Content-Length", str(len(case.body) if case.announced is None else case.announced))
    connection.endheaders(case.body or None)
    answer = connection.getresponse()
    return answer, answer.read()


def everything(live: Live) -> Any:
    """All that a request could have left behind."""
    kinds = ("train", "sweep", "import", "publish", "index")
    jobs = [
        (job.id, job.state, job.last_seq) for kind in kinds for job in live.store.jobs.list(kind=kind, limit=500)[0]
    ]
    files = sorted(path for path in live.settings.home.rglob("*") if not path.name.startswith("service.db"))
    published = live.store.embeddings.snapshot()
    return jobs, [row.ref for row in live.store.datasets.list()[0]], published, files
