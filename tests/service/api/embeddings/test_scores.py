"""Recommendations, pairs and comparisons are what numpy makes of the same vectors; pages of ids are complete."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.embeddings.table import Table
from tests.service.api.embeddings.published import fields_of, put_version
from tests.service.api.server import Live
from tests.service.embeddings.tables import make_ids

ROWS, DIM = 200, 8
IDS: list[Any] = list(make_ids(ROWS, "str"))
VECTORS = np.random.default_rng(3).standard_normal((ROWS, DIM)).astype(np.float32)
VECTORS[17] = 0
UNIT = VECTORS / np.maximum(np.linalg.norm(VECTORS.astype(np.float64), axis=1, keepdims=True), 1e-30)


@pytest.fixture(scope="module")
def table(shared: Live) -> Table:
    return put_version(shared.store, shared.settings, vectors=VECTORS, ids="str", labels=4)


def post(live: Live, table: Table, what: str, body: dict[str, Any]) -> Any:
    answer = live.http.post(f"/v1/embeddings/{table.info.version}/{what}", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["nml-version"] == table.info.version
    return answer.json()


def refused(live: Live, table: Table, what: str, body: dict[str, Any]) -> list[str]:
    return fields_of(live.http.post(f"/v1/embeddings/{table.info.version}/{what}", json=body))


def test_recommendations_are_near_the_positive_and_far_from_the_negative(shared: Live, table: Table) -> None:
    positive, negative = [1, 2, 17], [3, 4]
    body = {"positive": [IDS[row] for row in positive] + ["absent"], "negative": [IDS[row] for row in negative], "k": 7}
    query = UNIT[positive].mean(axis=0) - UNIT[negative].mean(axis=0)
    scores = UNIT @ query / np.linalg.norm(query)
    ranked = [row for row in np.argsort(-scores) if row not in positive + negative]
    found = post(shared, table, "recommend", body)
    assert found["ids"] == [IDS[row] for row in ranked[:7]]
    np.testing.assert_allclose(found["scores"], scores[ranked[:7]], rtol=1e-5)
    assert found["unknown"] == ["absent"]
    above = float(scores[ranked[2]] + scores[ranked[3]]) / 2
    assert post(shared, table, "recommend", body | {"min_score": above})["ids"] == found["ids"][:3]
    among = [IDS[row] for row in (*ranked[50:53], 1)]
    only = post(shared, table, "recommend", body | {"filter": {"ids": among}})
    assert only["ids"] == [IDS[row] for row in ranked[50:53]]
    assert refused(shared, table, "recommend", {"positive": ["absent"]}) == ["positive"]
    assert refused(shared, table, "recommend", {"positive": [IDS[1]], "negative": [IDS[1]]}) == ["negative"]


def test_neighbours_below_a_score_are_left_out(shared: Live, table: Table) -> None:
    whole = post(shared, table, "neighbors", {"ids": [IDS[0], IDS[1]], "k": 20})["results"]
    for rank, score in enumerate(whole[0]["scores"]):
        body = {"ids": [IDS[0]], "k": 20, "min_score": score}
        assert len(post(shared, table, "neighbors", body)["results"][0]["ids"]) >= rank + 1
    least = whole[0]["scores"][4]
    found = post(shared, table, "neighbors", {"ids": [IDS[0], IDS[1]], "k": 20, "min_score": least})["results"]
    for before, after in zip(whole, found, strict=True):
        assert after["scores"] == [score for score in before["scores"] if score >= least]
        assert after["ids"] == before["ids"][: len(after["scores"])]
    assert len(found[0]["ids"]) == 5
    address = f"/v1/embeddings/{table.info.version}/neighbors?k=20&min_score={least!r}"
    headers = {"Content-Type": "application/octet-stream"}
    sent = shared.http.post(address, content=VECTORS[:1].tobytes(), headers=headers).json()["results"][0]
    assert sent["ids"] == [IDS[0], *found[0]["ids"]]
    assert post(shared, table, "neighbors", {"ids": [IDS[0]], "min_score": 1e300})["results"][0]["ids"] == []


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_pairs_score_as_numpy_says(shared: Live, table: Table, metric: str) -> None:
    vectors = UNIT if metric == "cosine" else VECTORS.astype(np.float64)
    rows, others = [0, 17, 5], [5, 9]
    body = {"ids": [IDS[0], "absent", IDS[17], IDS[5]], "others": ["absent", *(IDS[row] for row in others)]}
    found = post(shared, table, "scores", body | {"metric": metric})
    assert (found["ids"], found["others"]) == ([IDS[row] for row in rows], [IDS[row] for row in others])
    assert (found["unknown"], found["metric"]) == (["absent"], metric)
    np.testing.assert_allclose(found["scores"], vectors[rows] @ vectors[others].T, rtol=1e-5, atol=1e-6)
    alone = post(shared, table, "scores", {"ids": [IDS[0], IDS[5]], "metric": metric})
    np.testing.assert_allclose(alone["scores"], vectors[[0, 5]] @ vectors[[0, 5]].T, rtol=1e-5, atol=1e-6)
    assert alone["others"] == alone["ids"]
    assert post(shared, table, "scores", {"ids": [IDS[0]], "others": ["absent"]})["scores"] == [[]]


def test_a_version_that_is_only_turned_agrees_with_itself(shared: Live, table: Table) -> None:
    turn = np.linalg.qr(np.random.default_rng(5).standard_normal((DIM, DIM)))[0]
    turned = put_version(shared.store, shared.settings, vectors=(VECTORS @ turn).astype(np.float32), ids="str")
    found = post(shared, table, "compare", {"other": turned.info.version, "k": 5, "sample": 60, "seed": 1})
    assert (found["other"], found["k"], len(found["ids"])) == (turned.info.version, 5, 60)
    assert IDS[17] not in found["ids"]
    assert found["mean_overlap"] > 0.99
    assert found["mean_drift"] == pytest.approx(0.0, abs=1e-6)


def test_overlap_and_drift_are_as_numpy_has_them(shared: Live, table: Table) -> None:
    noise = np.random.default_rng(6).standard_normal(VECTORS.shape).astype(np.float32)
    moved = put_version(shared.store, shared.settings, vectors=(VECTORS + noise)[::-1], ids=IDS[::-1])
    body = {"other": moved.info.version, "k": 5, "sample": 40}
    found = post(shared, table, "compare", body)
    rows = [IDS.index(node) for node in found["ids"]]
    after = (VECTORS + noise).astype(np.float64)
    after /= np.linalg.norm(after, axis=1, keepdims=True)
    for at, row in enumerate(rows):
        near = [
            {other for other in np.argsort(-(unit @ unit[row]), kind="stable")[:6] if other != row}
            for unit in (UNIT, after)
        ]
        assert found["overlap"][at] == pytest.approx(len(near[0] & near[1]) / 5)
        rest = [other for other in rows if other != row]
        correlation = np.corrcoef(UNIT[rest] @ UNIT[row], after[rest] @ after[row])[0, 1]
        assert found["drift"][at] == pytest.approx(1 - correlation, abs=1e-6)
    assert found["mean_drift"] == pytest.approx(np.mean(found["drift"]))
    assert 0 < found["mean_overlap"] < 1
    assert post(shared, table, "compare", body) == found
    elsewhere = put_version(shared.store, shared.settings, rows=20, dim=4, ids="shuffled")
    assert refused(shared, table, "compare", {"other": elsewhere.info.version}) == ["other"]
    absent = shared.http.post(f"/v1/embeddings/{table.info.version}/compare", json={"other": "never.there"})
    assert fields_of(absent, 404) == []


def test_pages_of_ids_are_complete_and_of_one_version(shared: Live, table: Table) -> None:
    address, seen, cursor = f"/v1/embeddings/{table.info.version}/ids", [], None
    while True:
        query = {"limit": 70} | ({} if cursor is None else {"cursor": cursor})
        page = shared.http.get(address, params=query)
        assert page.status_code == 200, page.text
        seen.append(page.json()["ids"])
        cursor = page.json()["next"]
        if cursor is None:
            break
    assert [len(ids) for ids in seen] == [70, 70, 60]
    assert [node for ids in seen for node in ids] == IDS
    other = put_version(shared.store, shared.settings, rows=20, dim=4)
    for wrong in (f"{other.info.version}:3", "3", f"{table.info.version}:-1", f"{table.info.version}:" + "9" * 16):
        assert fields_of(shared.http.get(address, params={"cursor": wrong})) == ["cursor"]
    assert shared.http.get(address, params={"cursor": f"{table.info.version}:{10**14}"}).json()["ids"] == []
