"""embed and classify with a run that was really trained, through a real API."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from service.api.routes import inference
from service.client import ApiError, Client, _embeddings
from service.embeddings.jobs import publish_job
from service.settings import Settings
from service.store.records import Claim
from tests.service.api.server import SMALL, Live, serving
from tests.service.cli.commands import nml
from tests.service.client.published import conclude, nearest
from trainer.config import parse_spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def live(tmp_path_factory) -> Iterator[Live]:
    """A service with one published version of `SMALL`, whose nodes are 0 to 59, of two classes."""
    from trainer.loop import fit

    with serving(Settings(home=tmp_path_factory.mktemp("home"), poll_seconds=0.02, memory_limit="8GB")) as server:
        job = server.claim(server.submit()["id"])
        result = fit(parse_spec(SMALL), server.settings.run_directory(job.id))
        outcome = {"embeddings": True, "metrics": result.metrics}
        server.store.claims.finish(Claim.on(job), "succeeded", result=outcome, publish=publish_job(job))
        conclude(server, job.id)
        yield server


@pytest.fixture(autouse=True)
def address(live: Live, monkeypatch) -> None:
    monkeypatch.setenv("NML_URL", live.url)
    monkeypatch.delenv("NML_API_KEY", raising=False)


@pytest.fixture
def table(live: Live) -> np.ndarray:
    (version,) = live.settings.embeddings.iterdir()
    return np.load(version / "vectors.npy")


def in_place(node: int) -> dict:
    """A node of the graph as it is there, for a request that puts it in its own place."""
    from trainer.data.datasets import load

    graph = load(parse_spec(SMALL).data)
    sources = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
    return {"id": node, "features": graph.x[node].tolist(), "edges": sources.tolist()}


def test_a_node_embedded_in_its_own_place_has_the_exported_vector(table: np.ndarray, tmp_path: Path):
    file, out = tmp_path / "nodes.json", tmp_path / "out.npy"
    file.write_text(json.dumps([in_place(7)]))
    done = nml("embed", "latest", "--nodes", str(file), "--out", str(out))
    assert done.stdout == ""
    np.testing.assert_allclose(np.load(out), table[[7]], atol=1e-6)


def test_new_nodes_come_with_vectors_and_neighbours(table: np.ndarray, tmp_path: Path):
    new = {"id": "new", "features": in_place(7)["features"], "edges": [{"node": 7, "weight": 1.0}, 3]}
    nodes = [new, {"features": np.zeros(8), "edges": ["new"]}]
    with Client() as client:
        found = client.vectors.embed("latest", nodes, neighbors=4)
        assert found.vectors.shape == (2, 4)
        assert list(found.ids) == ["new", None]
        order, scores = nearest(table, found.vectors)
        assert found.neighbors is not None
        assert found.neighbors.queries == ["new", 1]
        assert found.neighbors.ids == order[:, :4].tolist()
        np.testing.assert_allclose(np.stack(found.neighbors.scores), scores[:, :4], rtol=1e-5)
        with pytest.raises(ApiError, match=r"nodes\.1\.features"):
            client.vectors.embed("latest", [new, {"features": [1.0], "edges": []}])
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps({"nodes": [new]}))
    document = json.loads(nml("embed", "--nodes", str(file), "--neighbors", "4", "--json").stdout)
    assert document["ids"] == ["new"]
    assert len(document["results"][0]["ids"]) == 4
    shown = nml("embed", "--nodes", str(file), "--neighbors", "4").stdout
    assert [line.split()[0] for line in shown.splitlines()[1:]] == ["new"] * 4


def test_labels_of_some_give_labels_of_others(live: Live, tmp_path: Path):
    from trainer.data.datasets import load

    truth = load(parse_spec(SMALL).data).y.tolist()
    labels, out = tmp_path / "some.csv", tmp_path / "all.csv"
    labels.write_text("label,id,more\n" + "".join(f"kind {truth[node]},{node},x\n" for node in range(40)))
    done = nml("classify", "--labels", str(labels), "--out", str(out))
    assert done.stdout == ""
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert sorted(int(row["id"]) for row in rows) == list(range(40, 60))
    assert {row["label"] for row in rows} <= {"kind 0", "kind 1"}
    assert all(0.5 <= float(row["confidence"]) <= 1 for row in rows)
    wanted = tmp_path / "wanted.csv"
    wanted.write_text("id\n41\n3\n")
    shown = nml("classify", "--labels", str(labels), "--predict", str(wanted))
    assert [line.split(",")[0] for line in shown.stdout.splitlines()] == ["id", "41", "3"]
    assert "from 40" in shown.stderr
    with Client() as client:
        found = client.vectors.classify("latest", {node: truth[node] for node in range(40)}, predict=[41])
    assert list(found.ids) == [41]
    assert found.labels[0] in (0, 1)
    assert found.accuracy is None or 0 <= found.accuracy <= 1


def test_rows_without_a_label_are_predicted_and_are_no_class(tmp_path: Path):
    from trainer.data.datasets import load

    truth = load(parse_spec(SMALL).data).y.tolist()
    labels = tmp_path / "some.csv"
    rows = [f"{node},kind {truth[node]}" for node in range(40)] + ["40,", "41, ", "42"]
    labels.write_text("id,label\n" + "\n".join(rows) + "\n")
    done = nml("classify", "--labels", str(labels), "--json")
    document = json.loads(done.stdout)
    assert document["classes"] == ["kind 0", "kind 1"]
    assert sorted(document["ids"]) == list(range(40, 60))
    assert "3 rows have no label" in done.stderr


@pytest.mark.parametrize("name", ["kind {}", "{}", 0, 2**62])
def test_more_predictions_than_an_answer_in_json_may_hold_are_the_same(name, monkeypatch):
    from trainer.data.datasets import load

    truth = load(parse_spec(SMALL).data).y.tolist()
    classes = [name.format(k) if isinstance(name, str) else name + k for k in range(2)]
    labels = {node: classes[truth[node]] for node in range(30)}
    some = [*range(25, 60), 3]
    with Client() as client:
        expected = [client.vectors.classify("latest", labels, wanted) for wanted in (None, some)]
        monkeypatch.setattr(inference, "MOST_PREDICTED", 10)
        with pytest.raises(ApiError, match="predict"):
            client.vectors.classify("latest", labels)
        monkeypatch.setattr(_embeddings, "PREDICTED", 10)
        found = [client.vectors.classify("latest", labels, wanted) for wanted in (None, some)]
    for one, other in zip(found, expected, strict=True):
        assert one.confidence.tobytes() == other.confidence.tobytes()
        changing = {"confidence"}  # as a number of the document it has more digits
        assert one.document.keys() == other.document.keys()
        assert all(one.document[key] == other.document[key] for key in one.document.keys() - changing)
        assert (one.ids, one.labels, one.accuracy) == (other.ids, other.labels, other.accuracy)
    assert found[0].ids == list(range(30, 60))
    assert found[1].ids == some


@pytest.mark.parametrize(
    "text, says",
    [
        ("node,label\n1,a\n", "no column id"),
        ("id,label\n1,a\n2,b\n1,b\n", "row 4"),
        ("id,label\n1,a\nnobody,b\n", "ids.1"),
        ("id,label\n1,a\n2,a\n", "two classes"),
        ("id,label\n", "ids"),
    ],
)
def test_label_files_that_cannot_be_used_are_explained(tmp_path: Path, text, says):
    file = tmp_path / "labels.csv"
    file.write_text(text)
    assert says in nml("classify", "--labels", str(file), code=3).stderr


@pytest.mark.parametrize("text, says", [("{}", "list of nodes"), ("[1]", "list of nodes"), ("[", "JSON")])
def test_node_files_that_cannot_be_used_are_explained(tmp_path: Path, text, says):
    file = tmp_path / "nodes.json"
    file.write_text(text)
    assert says in nml("embed", "--nodes", str(file), code=3).stderr
