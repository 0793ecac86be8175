"""JSON bodies in which nearly everything is wrong: refused at once, with a short list of what is."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.abuse.attackers import FILES, attacked, client, train
from tests.service.api.server import SMALL, Live

SECONDS = 1.5  # of CPU, the faster of three: several times what the dearest takes on a busy machine (-s prints each)
BYTES = 20_000  # of an answer
KEYS = 80_000


def unknown(count: int = KEYS) -> dict[str, Any]:
    return {f"k{number}": 1 for number in range(count)}


DEEP: dict[str, Any] = {"a": {"b": {"c": {"d": {"e": 1}}}}}
WRONG: dict[str, tuple[str, Any]] = {
    "job": ("jobs", unknown()),
    "section": ("jobs", {**SMALL, "encoder": unknown()}),
    "without a preset": ("jobs", {**SMALL, "preset": None, "data": unknown()}),
    "classes": ("jobs", {**SMALL, "data": {"name": "synthetic", "synthetic": unknown()}}),
    "lists": ("jobs", {**SMALL, "augment": {"drop_edges": ["x"] * KEYS}}),
    "sweep": ("sweeps", {"base": SMALL, **unknown()}),
    "base": ("sweeps", {"base": unknown()}),
    "space": ("sweeps", {"base": SMALL, "space": unknown()}),
    "kinds": ("sweeps", {"base": SMALL, "space": {f"k{at}": {"kind": "log"} for at in range(KEYS // 3)}}),
    "dimension": ("sweeps", {"base": SMALL, "space": {"objective.alpha": unknown()}}),
    "values": (
        "sweeps",
        {"base": SMALL, "space": {"method.temperature": {"kind": "choice", "values": ["x"] * 9_999}}},
    ),
    "objects": (
        "sweeps",
        {"base": SMALL, "space": {"method.temperature": {"kind": "choice", "values": [DEEP] * 9_999}}},
    ),
    "starts": ("sweeps", {"base": SMALL, "starts": [{"no.such": 1}] * 9_999}),
    "start": ("sweeps", {"base": SMALL, "starts": [unknown()]}),
    "texts": ("sweeps", {"base": SMALL, "starts": ["x"] * 9_999}),
    "lookup": ("embeddings/{}/lookup", unknown()),
    "ids": ("embeddings/{}/lookup", {"ids": [None] * 9_999}),
    "neighbors": ("embeddings/{}/neighbors", unknown()),
    "filter": ("embeddings/{}/neighbors", {"ids": [0], "filter": unknown()}),
    "classify": ("embeddings/{}/classify", unknown()),
    "embed": ("embeddings/{}/embed", unknown()),
    "index": ("embeddings/{}/index", unknown()),
    "publish": ("embeddings", unknown()),
    "alias": ("aliases/name", unknown()),
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with attacked(tmp_path_factory.mktemp("home"), rate_burst=100_000) as server:
        yield server


@pytest.fixture(scope="module")
def version(live: Live) -> str:
    return train(live, client(live, "submit")).version


@pytest.mark.parametrize("name", WRONG)
def test_a_body_full_of_mistakes_is_refused_quickly_and_briefly(live: Live, version: str, name: str):
    path, document = WRONG[name]
    body = json.dumps(document, separators=(",", ":"))
    assert len(body) < live.settings.max_body_bytes
    caller = client(live, "submit", "admin")
    method = "PUT" if path.startswith("aliases") else "POST"

    def ask() -> tuple[httpx.Response, float]:
        begun = time.process_time()
        answer = caller.request(
            method, f"/v1/{path.format(version)}", content=body, headers={"Content-Type": "application/json"}
        )
        return answer, time.process_time() - begun

    answer, seconds = min((ask() for _ in range(3)), key=lambda asked: asked[1])
    print(f"{name}: {len(body):,} bytes, {seconds:.3f} s, {answer.status_code}, {len(answer.content):,} bytes")  # noqa: T201
    assert answer.status_code in (409, 422), answer.text[:300]
    assert len(answer.json().get("errors", [])) <= 50
    assert (seconds < SECONDS, len(answer.content) < BYTES) == (True, True), (seconds, len(answer.content))


def test_options_of_an_upload_full_of_mistakes_are_refused_quickly_and_briefly(live: Live):
    caller, options = client(live, "submit"), json.dumps(unknown(4_000))
    begun = time.process_time()
    answer = caller.post("/v1/datasets", data={"name": "papers", "options": options}, files=FILES)
    seconds = time.process_time() - begun
    assert answer.status_code == 422, answer.text[:300]
    assert (seconds < SECONDS, len(answer.content) < BYTES) == (True, True), (seconds, len(answer.content))
