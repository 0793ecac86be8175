"""Texts and numbers that break databases, wherever a client may put one: refused, or given back as they were.

On SQLite and on PostgreSQL, which disagree about what a text or a whole number is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from service.settings import Settings
from tests import postgres
from tests.contract.stage import VERSION, furnish
from tests.service.api.server import SMALL, Live, serving

TEXTS = (
    "", " ", "\0", "a\0b", "\x01", "\x1b[31m", "\x7f", "\t\r\n", "\x85", "'", "''", '"', "`", "\\", "\\'", "%", "%s",
    "%(x)s", "_", "?", ":id", "$1", "{}", "'; DROP TABLE jobs; --", "' OR '1'='1", "x" * 200, "é" * 200, "e\u0301", "ﬁ",
    "İ", "\u202e", "\u200b", "\ufeff", "\ufffe", "\uffff", "\U0010ffff", "💩", "👩‍👩‍👧", "\u2028", "../../etc/passwd",
    "null", "true", "NaN", "1e400", "\\u0000", "\\x00", "<script>", "{{7*7}}", "${jndi:x}", "=cmd()", "CON", "-",
)  # fmt: skip
NUMBERS = (
    0, -1, 2**31 - 1, 2**31, 2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, -(2**31) - 1, -(2**63),
    -(2**63) - 1,
)  # fmt: skip


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    home = tmp_path_factory.mktemp("home")
    with ExitStack() as stack:
        url = None
        if request.param == "postgresql":
            if postgres.MISSING:
                pytest.skip(postgres.MISSING_REASON)
            url = stack.enter_context(postgres.running()).new_database("nasty")
        settings = Settings(
            home=home, database_url=url, memory_limit="8GB", min_free_bytes=0, rate_per_second=1e6, rate_burst=10**6
        )
        server = stack.enter_context(serving(settings))
        furnish(server.store, settings)
        yield server


def fine(answer: httpx.Response) -> httpx.Response:
    """An answer that is no failure of ours."""
    assert answer.status_code < 500, (answer.request.url, answer.request.content, answer.text)
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
    return answer


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/sweeps"])
def test_name_is_refused_or_given_back(live: Live, path: str) -> None:
    def document(name: str) -> dict[str, Any]:
        spec = SMALL | {"run": {"name": name}}
        return {"base": spec, "concurrency": 1} if path == "/v1/sweeps" else spec

    taken = []
    for text in TEXTS:
        answers = [
            fine(live.http.post(path, json=document(text))),
            fine(live.http.post(path, json=document("x"), params={"name": text})),
        ]
        for made in (answer.json() for answer in answers if answer.status_code == 202):
            taken.append(text)
            assert made["name"] == text
            shown = fine(live.http.get(made["links"]["self"])).json()
            assert shown == made
            assert shown["spec"].get("base", shown["spec"])["run"]["name"] == text
            fine(live.http.get(made["links"]["metrics"], params={"names": text}))
    assert len(taken) > len(TEXTS)
    listed = live.http.get(path, params={"limit": 500}).json()["items"]
    assert set(taken) <= {item["name"] for item in listed}


_ASKED = (
    ("/v1/jobs", "dataset"), ("/v1/jobs", "cursor"), ("/v1/jobs", "state"), ("/v1/jobs", ""), ("/v1/sweeps", "cursor"),
    ("/v1/datasets", "cursor"), ("/v1/jobs/running/metrics", "names"), ("/v1/jobs/running/log", "tail"),
    ("/v1/embeddings", "dataset"), ("/v1/embeddings", "cursor"), ("/v1/aliases", "cursor"),
    (f"/v1/embeddings/{VERSION}/download", "format"),
)  # fmt: skip


def test_text_anywhere_else(live: Live) -> None:
    for text in TEXTS:
        for path, name in _ASKED:
            fine(live.http.get(path, params={name or text: text}))
        encoded = quote(text, safe="")
        for path in ("jobs/{}", "sweeps/{}/trials", "datasets/{}", "jobs/succeeded/figures/{}", "jobs/{}/events"):
            fine(live.http.get("/v1/" + path.format(encoded)))
        for path in ("embeddings/{}", "embeddings/{}/nodes/1", f"embeddings/{VERSION}/nodes/{{}}", "aliases/{}"):
            fine(live.http.get("/v1/" + path.format(encoded)))
        fine(live.http.put(f"/v1/aliases/{encoded}", json={"version": VERSION}))
        fine(live.http.put("/v1/aliases/mine", json={"version": text, "expected": text}))
        fine(live.http.post("/v1/embeddings", json={"job": text}))
        for question in ({"ids": [text, 1]}, {"ids": [1], "filter": {"ids": [text]}}, {text: text}):
            for what in ("lookup", "neighbors"):
                answer = fine(live.http.post(f"/v1/embeddings/{VERSION}/{what}", json=question))
                if answer.status_code == 200 and "filter" not in question:
                    assert answer.json()["unknown"] == [text]
        labels = {"ids": [0, 1], "labels": [text, "other"], "predict": [text]}
        fine(live.http.post(f"/v1/embeddings/{VERSION}/classify", json=labels))
        fine(live.http.delete(f"/v1/embeddings/{encoded}"))
        fine(live.http.delete(f"/v1/jobs/{encoded}"))
        fine(live.http.delete(f"/v1/datasets/{encoded}"))
        for spec in ({"preset": text}, {"data": {"name": "imported", "imported": text}}, {text: text}):
            fine(live.http.post("/v1/jobs", json=spec))
        space = {"encoder.activation": {"kind": "choice", "values": [text]}}
        fine(
            live.http.post("/v1/sweeps", json={"base": SMALL, "space": space, "starts": [{"encoder.activation": text}]})
        )


def test_idempotency_key_is_one_key_however_odd(live: Live) -> None:
    made = {}
    for text in (text for text in TEXTS if text.isascii() and text.isprintable() and text == text.strip()):
        first, again = (
            fine(live.http.post("/v1/jobs", json=SMALL, headers={"Idempotency-Key": text})) for _ in range(2)
        )
        assert first.status_code == again.status_code
        if first.status_code == 202:
            assert first.json()["id"] == again.json()["id"]
            made[text] = first.json()["id"]
    assert len(set(made.values())) == len(made) > 15


def test_number_anywhere(live: Live) -> None:
    for number in NUMBERS:
        asked = {
            "/v1/jobs": ("limit", "cursor"), "/v1/sweeps": ("limit",), "/v1/datasets": ("limit", "cursor"),
            "/v1/jobs/succeeded/events": ("after",), "/v1/jobs/running/log": ("tail",),
            "/v1/jobs/running/metrics": ("every", "limit"), "/v1/sweeps/sweep-running/trials": ("after", "limit"),
        }  # fmt: skip
        for path, names in asked.items():
            for name in names:
                fine(live.http.get(path, params={name: number}))
        fine(live.http.get("/v1/jobs/succeeded/events", headers={"Last-Event-ID": str(number)}))
        for question in ({"ids": [number]}, {"ids": [1], "filter": {"ids": [number]}}, {"ids": [1], "k": number}):
            fine(live.http.post(f"/v1/embeddings/{VERSION}/neighbors", json=question))
        fine(live.http.post(f"/v1/embeddings/{VERSION}/lookup", json={"ids": [number]}))
        fine(live.http.get(f"/v1/embeddings/{VERSION}/nodes/{number}"))
        for name in ("priority", "deadline_minutes"):
            fine(live.http.post("/v1/jobs", json=SMALL, params={name: number}))
        for spec in ({"run": {"seed": number}}, {"optimiser": {"epochs": number}}, {"sampling": {"tile": number}}):
            fine(live.http.post("/v1/jobs", json=SMALL | spec))
