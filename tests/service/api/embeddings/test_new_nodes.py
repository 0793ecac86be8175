"""New nodes and labels through the API, with a genuine encoder in its own process."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from service.api.embeddings.schemas import ClassifyDocument, EmbedDocument
from service.embeddings.jobs import about_version
from service.embeddings.layout import read_info
from service.settings import Settings
from tests.service.api.embeddings.published import fields_of, put_job, put_version
from tests.service.api.server import Live, serving
from tests.service.encoder.versions import SPEC, VERSION, publish, raw_graph

RAW, NPY = "application/octet-stream", "application/x-npy"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    settings = Settings(home=tmp_path_factory.mktemp("home"), poll_seconds=0.02, rate_burst=10**6)
    with serving(settings) as server:
        folder = publish(settings.home, SPEC)
        put_job(server.store, VERSION)
        row = server.store.embeddings.get(VERSION)
        assert row is not None
        server.store.embeddings.finish(VERSION, row.job_id, about=about_version(read_info(folder)))
        yield server


@pytest.fixture(scope="module")
def vectors(live: Live) -> Any:
    return np.load(live.settings.version_directory(VERSION) / "vectors.npy")


@pytest.fixture(scope="module")
def nodes(live: Live) -> list[dict[str, Any]]:
    """Three nodes of the graph as a client would describe them: features and neighbours."""
    graph = raw_graph(live.settings.home)
    x = graph.x.to_dense().numpy()
    source, target = graph.edge_index.numpy()
    return [{"id": row, "features": x[row].tolist(), "edges": source[target == row].tolist()} for row in (3, 50, 199)]


def embed(live: Live, accept: str = "application/json", **question: Any) -> Any:
    return live.http.post(f"/v1/embeddings/{VERSION}/embed", json=question, headers={"Accept": accept})


def test_nodes_of_the_graph_get_their_exported_vectors(live: Live, vectors: Any, nodes: list[dict[str, Any]]) -> None:
    answer = embed(live, nodes=nodes)
    assert answer.status_code == 200, answer.text
    found = EmbedDocument.model_validate(answer.json())
    assert (found.version, found.ids, found.results) == (VERSION, [3, 50, 199], None)
    np.testing.assert_allclose(found.vectors, vectors[[3, 50, 199]], rtol=1e-5, atol=1e-6)
    exact = np.array(found.vectors, np.float32).tobytes()
    assert embed(live, RAW, nodes=nodes).content == exact
    assert np.load(io.BytesIO(embed(live, NPY, nodes=nodes).content)).tobytes() == exact
    sparse = [dict(node, features=_sparse(node["features"])) for node in nodes]
    np.testing.assert_allclose(embed(live, nodes=sparse).json()["vectors"], found.vectors, rtol=1e-5, atol=1e-6)
    mixed = embed(live, nodes=[nodes[0], *sparse[1:]]).json()["vectors"]
    np.testing.assert_allclose(mixed, found.vectors, rtol=1e-5, atol=1e-6)


def _sparse(features: list[float]) -> dict[str, Any]:
    there = [at for at, value in enumerate(features) if value]
    return {"indices": there[::-1], "values": [features[at] for at in there[::-1]]}


def test_neighbours_of_new_nodes(live: Live, vectors: Any, nodes: list[dict[str, Any]]) -> None:
    new = {"features": nodes[0]["features"], "edges": [*nodes[0]["edges"], {"node": "friend", "direction": "in"}]}
    friend = {"id": "friend", "features": nodes[1]["features"], "edges": []}
    document = embed(live, nodes=[new, friend, nodes[2]], neighbors={"k": 4, "metric": "dot"}).json()
    assert document["ids"] == [None, "friend", 199]
    assert [result["query"] for result in document["results"]] == [0, "friend", 199]
    for at, result in enumerate(document["results"]):
        scores = vectors.astype(np.float64) @ np.array(document["vectors"][at])
        if at == 2:
            scores[199] = -np.inf  # the node that it stands for
        order = np.argsort(-scores, kind="stable")[:4]
        assert result["ids"] == order.tolist()
        np.testing.assert_allclose(result["scores"], scores[order], rtol=1e-5, atol=1e-6)
    assert (document["metric"], document["backend"], document["k"]) == ("dot", "exact", 4)
    assert document["unknown_in_filter"] == []
    among = embed(live, nodes=[new, friend], neighbors={"filter": {"ids": [5, "absent", 6]}}).json()
    assert among["unknown_in_filter"] == ["absent"]
    assert sorted(among["results"][0]["ids"]) == [5, 6]
    EmbedDocument.model_validate(among)
    alone = embed(live, nodes=[dict(new, edges=nodes[0]["edges"])]).json()["vectors"][0]
    assert not np.allclose(alone, document["vectors"][0])  # the friend counts


def test_wrong_new_nodes(live: Live, nodes: list[dict[str, Any]]) -> None:
    good = nodes[0]
    for changed, field in (
        ({"features": [*good["features"], 1.0]}, "nodes"),
        ({"features": []}, "nodes.1.features"),
        ({"features": [True, *good["features"][1:]]}, "nodes.1.features.0"),
        ({"features": ["1", *good["features"][1:]]}, "nodes.1.features.0"),
        ({"features": [1e39, *good["features"][1:]]}, "nodes.1.features"),
        ({"features": None}, "nodes.1.features"),
        ({"features": {"indices": [1], "values": [1, 2]}}, "nodes.1.features"),
        ({"features": {"indices": [1, 1], "values": [1, 2]}}, "nodes.1.features"),
        ({"features": {"indices": [-1], "values": [1]}}, "nodes.1.features.indices.0"),
        ({"features": {"indices": [10**6], "values": [1]}}, "nodes.1.features"),
        ({"edges": [3, "absent"]}, "nodes.1.edges.1"),
        ({"edges": [3, {"node": "absent"}]}, "nodes.1.edges.1"),
        ({"edges": [True]}, "nodes.1.edges.0"),
        ({"edges": [{"node": 3, "weight": 0}]}, "nodes.1.edges.0.weight"),
        ({"edges": [3, {"node": 3, "weight": 2}]}, "nodes.1.edges.1.weight"),  # the graph has no weights
        ({"edges": [{"node": 3, "direction": "up"}]}, "nodes.1.edges.0.direction"),
        ({"edges": [{"node": 3, "color": 1}]}, "nodes.1.edges.0.color"),
        ({"id": str(good["id"])}, "nodes.1.id"),
        ({"id": 1.5}, "nodes.1.id"),
    ):
        wrong = {"features": nodes[1]["features"], "edges": []} | changed
        fields = fields_of(embed(live, nodes=[dict(good, edges=[]), wrong]))
        assert any(name == field or name.startswith(f"{field}.") for name in fields), (changed, fields)
    assert fields_of(embed(live, nodes=[])) == ["nodes"]
    assert fields_of(embed(live, nodes=[{"features": [1]}] * 1_001)) == ["nodes"]
    assert fields_of(embed(live, RAW, nodes=[good], neighbors={})) == ["neighbors"]
    assert fields_of(embed(live, nodes=[{"features": []}])) == ["nodes.0.features"]
    assert fields_of(embed(live, nodes=[{"features": [1.0]}])) == ["nodes.0.features"]
    weighted = embed(live, nodes=[dict(good, edges=[{"node": 3, "weight": 2}])]).json()
    assert "edge_weight" not in weighted["detail"]
    for options, field in (
        ({"k": 0}, "neighbors.k"), ({"backend": "hnsw"}, "neighbors.backend"), ({"filter": {}}, "neighbors.filter"),
        ({"filter": {"labels": ["absent"]}}, "neighbors.filter.labels"),
    ):  # fmt: skip
        assert fields_of(embed(live, nodes=[good], neighbors=options)) == [field]
    assert embed(live, nodes=[good]).status_code == 200  # and all is well after that


def test_features_of_another_number_are_refused_beside_sparse_ones_too(live: Live, nodes: list[dict[str, Any]]) -> None:
    """As zeros at the end of a row are not sent, one that is too short could pass for a sparse one."""
    features = nodes[0]["features"]
    width, sparse = len(features), {"features": _sparse(nodes[1]["features"])}
    for wrong in (features[: width // 2], [*features, 1.0], [1.0]):
        alone = embed(live, nodes=[{"features": wrong}])
        assert fields_of(alone) == ["nodes.0.features"]
        for at, question in enumerate(([{"features": wrong}, sparse], [sparse, {"features": wrong}])):
            beside = embed(live, nodes=question)
            assert fields_of(beside) == [f"nodes.{at}.features"]
            for answer in (alone, beside):
                said = f"{len(wrong)} features; the graph has {width}. Give all, in its order."
                assert answer.json()["detail"].endswith(said)
    assert embed(live, nodes=[{"features": features}, sparse]).status_code == 200


def test_version_without_encoder(live: Live) -> None:
    bare = put_version(live.store, live.settings, 5, 4).info.version
    answer = live.http.post(f"/v1/embeddings/{bare}/embed", json={"nodes": [{"features": [1.0]}]})
    assert answer.status_code == 409
    assert live.http.get(f"/v1/embeddings/{bare}").json()["links"]["embed"] is None


def test_classes_are_told(live: Live) -> None:
    """Two clouds that anyone can tell apart."""
    random = np.random.default_rng(0)
    side = np.arange(200) % 2
    cloud = (random.standard_normal((200, 6)) + 6 * side[:, None]).astype(np.float32)
    version = put_version(live.store, live.settings, vectors=cloud, ids=[f"n{row}" for row in range(200)]).info.version
    known = list(range(40))
    for names in (["cat", "dog"], [7, -3]):
        question = {"ids": [f"n{row}" for row in known], "labels": [names[side[row]] for row in known]}
        answer = live.http.post(f"/v1/embeddings/{version}/classify", json=question)
        assert answer.status_code == 200, answer.text
        found = ClassifyDocument.model_validate(answer.json())
        assert found.version == answer.headers["nml-version"] == version
        assert sorted(found.classes, key=str) == sorted(names, key=str)
        assert found.accuracy == 1.0
        assert found.ids == [f"n{row}" for row in range(40, 200)]
        assert found.labels == [names[side[row]] for row in range(40, 200)]
        assert all(0.5 < share <= 1 for share in found.confidence)
    question["predict"] = ["n9", "n100", "n9"]
    some = live.http.post(f"/v1/embeddings/{version}/classify", json=question).json()
    del question["predict"]
    assert some["ids"] == ["n9", "n100", "n9"]
    arrow = live.http.post(
        f"/v1/embeddings/{version}/classify", json=question,
        headers={"Accept": "application/vnd.apache.arrow.stream"},
    )  # fmt: skip
    table = pa.ipc.open_stream(arrow.content).read_all()
    every = {"ids": [f"n{row}" for row in range(200)], "labels": [names[side[row]] for row in range(200)]}
    nothing = live.http.post(
        f"/v1/embeddings/{version}/classify", json=every, headers={"Accept": "application/vnd.apache.arrow.stream"}
    )
    assert pa.ipc.open_stream(nothing.content).read_all().schema == table.schema
    columns = table.to_pydict()
    assert columns["id"] == found.ids
    assert columns["label"] == found.labels
    assert np.array(columns["confidence"], np.float32).tobytes() == np.array(found.confidence, np.float32).tobytes()
