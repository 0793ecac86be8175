"""Questions of any size: whatever the service takes at a time, the client asks in parts that it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from service.api.embeddings import responses
from service.client import ApiError, Client
from service.client._batches import PART_BYTES, ask_in_parts, id_sizes, row_sizes
from service.client._payloads import as_json
from service.settings import Settings
from tests.service.api.server import Live, serving
from tests.service.client.proxy import Proxy, proxying
from tests.service.client.published import nearest, published
from trainer.errors import InvalidInput


@pytest.fixture
def proxy(live: Live) -> Iterator[Proxy]:
    with proxying(live.url) as found:
        yield found


def test_parts_are_cut_by_count_and_bytes_and_are_all_of_it():
    ids = ["ü" * (number % 997) + '"\n' for number in range(12_345)] + [10**40, -3, "x" * 3_000_000, ""]
    parts: list[list[int | str]] = []

    def ask(part: list[int | str]) -> httpx.Response:
        parts.append(part)
        return httpx.Response(200)

    places = [start for start, _ in ask_in_parts(ids, 3_000, ask, sizes=id_sizes(ids))]
    assert [node for part in parts for node in part] == ids
    assert places == np.cumsum([0, *map(len, parts)])[:-1].tolist()
    assert max(map(len, parts)) <= 3_000
    assert all(len(as_json({"ids": part})) <= PART_BYTES + 20 or len(part) == 1 for part in parts)
    assert sum(map(len, map(as_json, parts))) == sum(id_sizes(ids))  # two brackets a part, and a comma fewer
    numbers = np.random.default_rng(0).integers(0, 2**31 - 2**24, (50, 500), np.uint32).view(np.float32)
    numbers = np.where(np.isfinite(numbers), -numbers, 0)
    assert len(as_json(numbers)) <= sum(row_sizes(numbers))


def test_a_part_that_is_too_large_is_halved_and_another_refusal_is_told_at_once():
    asked: list[int] = []

    def ask(part: list[int]) -> httpx.Response:
        asked.append(len(part))
        if len(part) > 3:
            raise ApiError(413, "too large")
        if 17 in part:
            raise ApiError(422, "invalid", errors=[{"field": "ids.1", "message": "no"}])
        return httpx.Response(200)

    answered = ask_in_parts([*range(20)], 10, ask, limits=("ids",))
    with pytest.raises(ApiError, match="no"):
        list(answered)
    assert asked == [10, 5, *[2] * 9]
    asked.clear()
    with pytest.raises(ApiError, match="too large"):
        list(ask_in_parts(["x"], 10, lambda part: ask(part * 4)))
    assert asked == [4]  # a single one cannot be halved


@pytest.mark.parametrize("letter", ["x", "文", "\U0001f600", "\x01", ","])
def test_ids_of_any_length_and_letters_are_looked_up_by_the_thousand(live: Live, client: Client, letter):
    ids = [letter * 100 + str(row) for row in range(9_000)]
    made = published(live, len(ids), 4, ids)
    found = client.vectors.lookup("latest", ids)
    assert found.unknown == []
    assert found.vectors.tobytes() == made.vectors.tobytes()


def test_a_lookup_of_more_numbers_than_an_answer_may_hold_is_made_in_parts(live: Live, proxy: Proxy, monkeypatch):
    monkeypatch.setattr(responses, "MOST_FLOATS", 30 * 8)
    made = published(live, 100, 8)
    with Client(proxy.url, key="") as client:
        assert client.vectors.lookup("latest", made.ids).vectors.tobytes() == made.vectors.tobytes()
        monkeypatch.setattr(responses, "MOST_FLOATS", 7)
        with pytest.raises(ApiError, match="8 numbers"):
            client.vectors.lookup(made.version, [1])
    paths = [line.split(" ")[1] for line in proxy.requests]
    assert paths[:4] == ["/v1/embeddings/latest/lookup"] * 3 + [f"/v1/embeddings/{made.version}/lookup"]  # 100, 50, 25
    assert len(paths) == 7


def test_a_service_that_takes_little_at_a_time_is_asked_more_often(tmp_path: Path):
    settings = Settings(home=tmp_path / "home", poll_seconds=0.02, memory_limit="8GB", max_query_bytes=20_000)
    with serving(settings) as live, Client(live.url, key="") as client:
        made = published(live, 3_000, 32)
        assert client.vectors.lookup("latest", made.ids * 3).vectors.tobytes() == made.vectors.tobytes() * 3
        found = client.vectors.neighbors("latest", vectors=made.vectors[:500], k=1)
        assert found.queries == list(range(500))
        assert found.ids == [[row] for row in range(500)]


def test_many_vectors_can_be_searched_with_under_any_filter(live: Live, client: Client, proxy: Proxy):
    labels = [row % 3 for row in range(90)]
    made = published(live, 90, 512, labels=labels)
    queries = np.random.default_rng(1).standard_normal((900, 512), dtype=np.float32)
    order, _ = nearest(made.vectors, queries)
    with Client(proxy.url, key="") as watched:
        found = watched.vectors.neighbors("latest", vectors=queries, k=3, labels=["class 0", "class 2"])
    assert found.queries == list(range(900))
    assert found.ids == [[row for row in rows if labels[row] != 1][:3] for rows in order.tolist()]
    assert len(proxy.requests) == 1
    assert "labels=class" in proxy.requests[0]
    among = client.vectors.neighbors("latest", vectors=queries, k=3, among=[*range(40)])
    assert among.queries == list(range(900))
    assert among.ids == [[row for row in rows if row < 40][:3] for rows in order.tolist()]


def test_labels_that_no_url_can_hold_are_a_filter_all_the_same(live: Live, client: Client):
    names = ["文" * 5_000, "&labels=b", "b"]
    made = published(live, 30, 4, labels=[row % 3 for row in range(30)], classes=names)
    for number, name in enumerate(names):
        found = client.vectors.neighbors("latest", vectors=made.vectors, k=30, labels=[name])
        assert {row % 3 for ids in found.ids for row in ids} == {number}
    with pytest.raises(ApiError, match=r"filter\.labels"):
        client.vectors.neighbors("latest", vectors=made.vectors, labels=[])  # none is not the same as any
    with pytest.raises(ApiError, match=r"filter\.labels"):
        client.vectors.neighbors("latest", vectors=made.vectors, labels=[1])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="surrogates"):
        client.vectors.neighbors("latest", vectors=made.vectors, labels=["\ud800"])


@pytest.mark.parametrize("by_id", [True, False])
def test_neighbours_come_with_vectors_however_many_are_asked_for(live: Live, client: Client, monkeypatch, by_id):
    made = published(live, 60, 8)
    expected = client.vectors.neighbors("latest", made.ids, k=5, include_self=True)
    monkeypatch.setattr(responses, "MOST_JSON_FLOATS", 10 * 5 * 8)
    question = {"ids": made.ids} if by_id else {"vectors": made.vectors}
    found = client.vectors.neighbors("latest", **question, k=5, include_self=True, include_vectors=True)
    assert found.queries == list(range(60))
    assert found.ids == expected.ids
    assert found.vectors is not None
    for ids, vectors in zip(found.ids, found.vectors, strict=True):
        assert vectors.tobytes() == made.vectors[ids].tobytes()


def test_a_wrong_dimension_is_told_once_and_as_it_was_given(live: Live, proxy: Proxy):
    published(live, 20, 4)
    with Client(proxy.url, key="") as client, pytest.raises(ApiError, match=r"\(6, 5\)"):
        client.vectors.neighbors("latest", vectors=np.ones((6, 5)))
    assert len(proxy.requests) == 1


def test_an_id_too_long_for_a_url_has_its_vector_or_is_not_there(live: Live, client: Client):
    ids = ["x" * 66_000, "文" * 10_000, "short"]
    made = published(live, 3, 4, ids)
    for name, vector in zip(ids, made.vectors, strict=True):
        found = client.vectors.vector("latest", name)
        assert (found.shape, found.tobytes()) == ((4,), vector.tobytes())
    told = []
    for name in ("y", "y" * 66_000):
        with pytest.raises(ApiError) as error:
            client.vectors.vector("latest", name)
        told.append((error.value.status, error.value.title, error.value.detail, str(error.value)))
    assert told[0] == told[1]
    assert told[0][0] == 404


@pytest.mark.parametrize("node", ["a\ud800", 10**5_000], ids=["surrogate", "digits"])
def test_an_id_that_cannot_be_written_is_refused_before_it_is_sent(client: Client, node):
    vectors = client.vectors
    for call in (
        lambda: vectors.vector("latest", node), lambda: vectors.lookup("latest", ["b", node]),
        lambda: vectors.neighbors("latest", [node]), lambda: vectors.neighbors("latest", ["b"], among=[node]),
        lambda: vectors.classify("latest", {node: 1, "b": 2}),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=r"ids\.\d: cannot be encoded"):
            call()
