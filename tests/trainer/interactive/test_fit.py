"""A graph in memory, of any library, goes in; its embeddings come out under its own ids."""

from __future__ import annotations

import shutil
import types

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse as sp
import torch

import trainer
from trainer.errors import InvalidInput
from trainer.run.directory import read_spec

QUICK = {
    "method": "grace", "encoder": {"hidden": 8, "dim": 4}, "optimiser": {"epochs": 2},
    "evaluation": {"probe_epochs": 2, "cluster_seeds": 1, "figures": False}, "run": {"threads": 1},
}  # fmt: skip
N = 40
RING = np.array([np.arange(N), (np.arange(N) + 1) % N])
X = np.random.default_rng(0).normal(size=(N, 6)).astype(np.float32)
NAMES = np.array([f"p-{number:02}" for number in range(N)])


def frames(ids=NAMES):
    nodes = pd.DataFrame(X, columns=[f"f{column}" for column in range(6)])
    nodes.insert(0, "id", list(ids))
    nodes["label"] = ["a" if number < N // 2 else "b" for number in range(N)]
    return nodes, pd.DataFrame({"source": list(ids[RING[0]]), "target": list(ids[RING[1]])})


def pyg():
    from torch_geometric.data import Data

    return Data(edge_index=torch.from_numpy(RING), x=torch.from_numpy(X))


def networkx_graph():
    networkx = pytest.importorskip("networkx")
    graph = networkx.Graph()
    graph.add_nodes_from((int(node), {"x": X[node]}) for node in range(N))
    graph.add_edges_from(RING.T.tolist())
    return graph


def ring_matrix():
    return sp.csr_matrix((np.ones(N), RING), shape=(N, N))


@pytest.fixture(scope="module")
def by_arrays():
    return trainer.fit((RING, X), spec=QUICK)


@pytest.mark.parametrize(
    "given",
    [
        pyg, networkx_graph, frames, lambda: tuple(map(pa.Table.from_pandas, frames())),
        lambda: (ring_matrix(), X), lambda: (ring_matrix(), sp.csr_matrix(X)),
        lambda: (torch.from_numpy(RING), X.tolist()),
        lambda: trainer.Graph.from_edges(RING, X), lambda: [RING.tolist(), X],
    ],
    ids=["pyg", "networkx", "pandas", "arrow", "matrix", "sparse features", "tensors", "graph", "lists"],
)  # fmt: skip
def test_every_form_of_a_graph_gives_the_same_vectors(given, by_arrays):
    found = trainer.fit(given(), spec=QUICK)
    np.testing.assert_allclose(found.vectors, by_arrays.vectors, atol=1e-6)


@pytest.mark.parametrize(
    "ids",
    [
        NAMES,
        np.arange(N) * 7 - 3,
        np.array([*NAMES[:20], *range(20)], dtype=object),
    ],
    ids=["text", "numbers", "mixed"],
)
def test_ids_come_back_as_they_went_in(ids):
    found = trainer.fit(frames(ids), spec=QUICK)
    assert list(found.ids) == list(ids)
    assert [type(node) for node in found.ids.tolist()] == [type(node) for node in ids.tolist()]
    near = [node for node, _ in found.neighbors(ids.tolist()[0], N - 1)]
    assert sorted(map(str, near)) == sorted(map(str, ids[1:]))


def test_nodes_of_networkx_may_be_tuples():
    networkx = pytest.importorskip("networkx")
    found = trainer.fit(networkx.grid_2d_graph(4, 5), spec=QUICK)
    assert found.ids.tolist() == [(row, column) for row in range(4) for column in range(5)]
    assert len(found.neighbors((0, 0), 3)) == 3


def test_a_frame_without_an_id_column_is_known_by_its_index():
    nodes, edges = frames()
    found = trainer.fit((nodes.set_index("id"), edges), spec=QUICK)
    assert found.ids.tolist() == NAMES.tolist()


def test_a_run_in_memory_is_an_ordinary_run(tmp_path):
    found = trainer.fit(frames(), tmp_path / "run", spec=QUICK)
    assert found.labels.tolist() == ["a"] * 20 + ["b"] * 20
    assert found.metrics["eval"]["probe"]["test"] is not None
    assert read_spec(tmp_path / "run").data.files.npz == str(tmp_path / "run" / "graph.npz")
    again = trainer.Embeddings.open(tmp_path / "run")
    np.testing.assert_array_equal(again.vectors, found.vectors)
    assert again.ids.tolist() == NAMES.tolist()
    trainer.evaluate_run(tmp_path / "run")
    with pytest.raises(InvalidInput, match="holds a run already"):
        trainer.fit(frames(), tmp_path / "run", spec=QUICK)
    resumed = trainer.fit(frames(), tmp_path / "run", spec=QUICK, resume=True)
    np.testing.assert_array_equal(resumed.vectors, found.vectors)
    with pytest.raises(InvalidInput, match="is another graph"):
        trainer.fit((RING, X + 1), tmp_path / "run", spec=QUICK, resume=True)


def test_a_directory_with_other_files_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InvalidInput, match=r"holds other files \(thesis\.tex\)"):
        trainer.fit((RING, X), tmp_path, spec=QUICK)
    assert [path.name for path in tmp_path.iterdir() if path.suffix] == ["thesis.tex"]


def test_a_spec_for_another_data_set_trains_on_the_graph_given():
    paper = trainer.parse_spec({**QUICK, "data": {"name": "cora", "features": "zscore"}})
    found = trainer.fit((RING, X), spec=paper)
    assert (found.spec.data.name, found.spec.data.features, found.spec.encoder) == ("files", "zscore", paper.encoder)


def test_directed_edges_weights_and_splits_are_kept():
    from torch_geometric.data import Data

    halves = {f"{part}_mask": torch.arange(N) % 3 == at for at, part in enumerate(("train", "val", "test"))}
    data = Data(
        edge_index=torch.from_numpy(RING), x=torch.from_numpy(X), edge_weight=torch.arange(1, N + 1).float(),
        y=torch.arange(N) % 2, **halves,
    )  # fmt: skip
    graph = trainer.fit(data, spec=QUICK, directed=True).graph
    assert graph.num_edges == N
    assert graph.is_directed()
    assert sorted(graph.weight.tolist()) == list(range(1, N + 1))
    assert graph.split["val"].tolist() == list(range(1, N, 3))
    undirected = trainer.fit(data, spec=QUICK).graph
    assert undirected.num_edges == 2 * N
    assert not undirected.is_directed()


def test_a_graph_without_features_gets_structural_ones_and_says_so(tmp_path):
    blocks = sp.block_diag([np.ones((15, 15)), np.ones((15, 15))]).tolil()
    blocks[0, 29] = blocks[29, 0] = 1
    found = trainer.fit(blocks.tocsr(), tmp_path / "run", spec={**QUICK, "optimiser": {"epochs": 20}})
    assert "the nodes have no features" in (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")
    own = {node for node, _ in found.neighbors(3, 14)}
    assert own == set(range(15)) - {3}
    first, second = found.embed(neighbors=[[1, 2, 3], [20, 21]])
    unit = found.vectors / np.linalg.norm(found.vectors, axis=1, keepdims=True)
    assert (unit @ first)[:15].mean() > (unit @ first)[15:].mean()
    assert (unit @ second)[:15].mean() < (unit @ second)[15:].mean()


@pytest.mark.parametrize(
    "given, options, said",
    [
        (7, {}, "a graph was expected, and this is an int"),
        (types.SimpleNamespace(node_types=1, edge_types=2), {}, "several kinds of nodes"),
        ((RING.T, X), {}, "must be"),
        ((RING, X[:5]), {}, "nodes are numbered 0 to 4"),
        ((sp.csr_matrix((3, 4)), X), {}, "must be square"),
        ((RING, X), {"ids": ["a"] * N}, 'id a is used twice'),
        ((RING, X), {"ids": [None] * N}, "that of node 0 is missing"),
        ((RING, X), {"labels": [0.5] * N}, "not a class"),
        ((RING, np.full((N, 2), np.nan)), {}, r"x\[0, 0\] is nan"),
        ((pd.DataFrame({"id": [1, 2], "name": ["x", "y"]}), pd.DataFrame({"source": [1], "target": [2]})), {},
         "column name holds no plain numbers"),
        ((pd.DataFrame({"id": [1, 2]}), pd.DataFrame({"source": [1], "target": [3]})), {},
         'edges, row 0: target "3" is not among the nodes'),
        ((pd.DataFrame({"id": [1, 2]}), pd.DataFrame({"from": [1], "to": [3]})), {},
         'no column "source", only from, to'),
        (trainer.parse_spec(QUICK), {"ids": [1]}, "a spec says all about its graph"),
    ],
)  # fmt: skip
def test_what_is_no_graph_is_refused_with_a_remedy(given, options, said, tmp_path):
    with pytest.raises(InvalidInput, match=said):
        trainer.fit(given, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_graph_that_lies_there_without_a_run_is_compared(tmp_path):
    run = tmp_path / "run"
    graph = trainer.Graph.from_edges(RING, X)
    with pytest.raises(InvalidInput, match="epochs"):
        trainer.fit(graph, run, spec={**QUICK, "optimiser": {"epochs": -1}})
    found = trainer.fit(graph, run, spec=QUICK)
    (run / "spec.json").unlink()  # as if it had been killed before it began
    for part in ("checkpoints", "embeddings", "figures"):
        shutil.rmtree(run / part)
    for name in ("events.jsonl", "metrics.json", "plan.json"):
        (run / name).unlink()
    for other, options in [((RING, X + 1), {}), ((RING, X), {"labels": [0, 1] * 20}), ((RING, X), {"ids": NAMES})]:
        with pytest.raises(InvalidInput, match=r"is another graph. Choose another directory"):
            trainer.fit(other, run, spec=QUICK, **options)
    np.testing.assert_array_equal(trainer.fit((RING, X), run, spec=QUICK).vectors, found.vectors)


def test_a_directory_with_only_a_lock_and_a_log_is_usable(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / "log.txt").write_text("refused")
    assert len(trainer.fit((RING, X), tmp_path, spec=QUICK)) == N


def test_a_run_is_found_from_another_working_directory_and_where_it_was_moved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = trainer.fit((RING, X), "run", spec=QUICK)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert found.neighbors(0, 2)
    (tmp_path / "run").rename(tmp_path / "moved")
    trainer.fit((RING, X + 1), tmp_path / "run", spec=QUICK)  # another graph where it was
    moved = trainer.Embeddings.open("../moved")
    np.testing.assert_array_equal(moved.graph.x.numpy(), X)
    assert moved.spec.data.files.npz == str(tmp_path / "elsewhere" / ".." / "moved" / "graph.npz")
