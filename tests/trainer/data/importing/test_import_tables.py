"""Imported tables against the same tables loaded in memory: random ones, and those that are awkward for a stream."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from trainer.spec.data import FilesSpec


def random_ids(rng: np.random.Generator, n: int) -> list:
    """Of one of four kinds: counting up, integers in disorder, texts, integers but for one."""
    kind = rng.integers(4)
    if kind == 0:
        return list(range(5, n + 5))
    if kind == 1:
        return (rng.permutation(10 * n)[:n] - 3 * n).tolist()
    names = [f"p-{i}{'ü' * int(i % 3)}" for i in rng.permutation(n)]
    return names if kind == 2 else [str(i) for i in rng.permutation(n)[1:]] + [names[0]]


def random_nodes(rng: np.random.Generator, ids: list) -> pd.DataFrame:
    n, width = len(ids), int(rng.integers(1, 9))
    x = rng.integers(-2, 3, (n, width)) / 2 * (rng.random((n, width)) < rng.random())  # holds zeros of both signs
    nodes = pd.DataFrame({"id": ids} | {f"f{j}": x[:, j] for j in range(width)})
    if rng.random() < 0.7:
        classes = [["b", "a", "", "zz"], ["1", "10", "9", "-1"], ["7", "x", "-1", ""]][rng.integers(3)]
        nodes.insert(int(rng.integers(1, width + 1)), "label", np.sort(rng.choice(classes, n)))  # some appear late
    return nodes


def random_edges(rng: np.random.Generator, ids: list, strangers: bool) -> pd.DataFrame:
    e = int(rng.integers(0, 200))
    ends = rng.choice(len(ids), (2, e), p=rng.dirichlet(np.full(len(ids), 0.3)))  # hubs, loops, repetitions
    edges = pd.DataFrame({"source": [ids[i] for i in ends[0]], "target": [ids[i] for i in ends[1]]})
    if strangers:
        unknown = "nobody" if isinstance(ids[0], str) else -(10**9)
        for column in edges:
            edges[column] = edges[column].where(rng.random(e) < 0.9, unknown)
    if rng.random() < 0.6:
        edges["weight"] = rng.choice([0.1, 0.3, 1.7, 1e-3, 0.0, 3e7], e)
        if rng.random() < 0.5:
            both = edges.rename(columns={"source": "target", "target": "source"})[["source", "target", "weight"]]
            edges = pd.concat([edges, both]).sample(frac=1, random_state=int(rng.integers(100)))
    return edges


def write(frame: pd.DataFrame, path: Path, form: str) -> str:
    file = path.with_suffix(f".{form}")
    if form == "csv":
        frame.to_csv(file, index=False)
    else:
        frame.to_parquet(file, index=False, row_group_size=37)
    return str(file)


@pytest.mark.parametrize("seed", range(48))
def test_imported_tables_equal_loaded_ones(tmp_path: Path, load_both, seed: int):
    rng = np.random.default_rng(seed)
    ids = random_ids(rng, int(rng.integers(2, 50)))
    strangers = rng.random() < 0.4
    nodes, edges = random_nodes(rng, ids), random_edges(rng, ids, strangers)
    files = {
        key: write(frame, tmp_path / key, ("csv", "parquet")[rng.integers(2)])
        for key, frame in (("nodes", nodes), ("edges", edges))
    }
    load_both(FilesSpec(**files, directed=bool(rng.random() < 0.5), drop_unknown=bool(strangers)))


def graph_of(tmp_path: Path, load_both, nodes: str, edges: str = "source,target\n", **options):
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "edges.csv").write_text(edges)
    return load_both(FilesSpec(nodes=str(tmp_path / "nodes.csv"), edges=str(tmp_path / "edges.csv"), **options))


@pytest.mark.parametrize("dense_first", [True, False])
def test_features_change_form_when_the_first_rows_misled(tmp_path: Path, load_both, dense_first: bool):
    rows = (
        [[1, 2, -0.0, 3]] * 3 + [[0, 0, -0.0, 0]] * 30
        if dense_first
        else [[0, -0.0, 0, 0]] * 3 + [[1, -0.0, 2, 3]] * 30
    )
    table = "id,a,b,c,d\n" + "".join(f"{i},{','.join(map(str, row))}\n" for i, row in enumerate(rows))
    graph = graph_of(tmp_path, load_both, table)
    assert graph.x.layout == (torch.sparse_csr if dense_first else torch.strided)


def test_sparse_features_with_signed_zeros_store_no_zeros(tmp_path: Path, load_both):
    graph = graph_of(tmp_path, load_both, "id,a,b,c,d,e\n" + "".join(f"{i},-0.0,{i},0,0,0\n" for i in range(40)))
    assert graph.x.values().numel() == 39


def test_ids_turn_to_text_when_a_late_one_is(tmp_path: Path, load_both):
    last = ["late", "007", "99999999999999999999"]
    nodes = "id,f\n" + "".join(f"{i},1\n" for i in [*range(-5, 40), *last])
    edges = "source,target\n-5,7\n007,7\n99999999999999999999,late\n"
    graph = graph_of(tmp_path, load_both, nodes, edges, directed=True)
    assert graph.ids.dtype.kind == "U"
    assert graph.num_edges == 3


@pytest.mark.parametrize("unknown", ["07", "7.0", " 7", "1e1", "9223372036854775808", "-9223372036854775809", "-0"])
def test_integer_ids_are_found_only_as_they_print(tmp_path: Path, load_both, unknown: str):
    top = 2**63 - 1
    nodes = f"id,f\n7,1\n0,1\n{top},1\n{-top - 1},1\n"
    edges = f"source,target\n7,0\n{top},{-top - 1}\n{unknown},7\n"
    graph = graph_of(tmp_path, load_both, nodes, edges, drop_unknown=True)
    assert graph.num_edges == 4
    assert "dropped 1 edge to" in graph.notes[0]


def test_a_label_column_that_is_the_id_column_and_labels_that_look_like_numbers_late(tmp_path: Path, load_both):
    graph_of(tmp_path, load_both, "id,f\n3,1\n1,1\n2,1\n", label_column="id")
    graph = graph_of(
        tmp_path, load_both, "id,label,f\n" + "".join(f"{i},{i % 3},1\n" for i in range(30)) + "x,other,1\n"
    )
    assert graph.classes == ("0", "1", "2", "other")


def test_a_wide_parquet_table_is_put_together_from_groups_of_columns(tmp_path: Path, load_both):
    rng = np.random.default_rng(0)
    columns = {"id": np.arange(300), "label": rng.integers(0, 3, 300)} | {f"f{j}": rng.random(300) for j in range(60)}
    pq.write_table(pa.table(columns), tmp_path / "nodes.parquet", row_group_size=128)
    pq.write_table(pa.table({"source": [1], "target": [2]}), tmp_path / "edges.parquet")
    load_both(FilesSpec(nodes=str(tmp_path / "nodes.parquet"), edges=str(tmp_path / "edges.parquet")))


@pytest.mark.parametrize(
    "content", ["id,f\ra,1\r\rb,2\r", "id,f\na,1\nb,2", "\n\nid,f\r\na,1\r\n\r\nb,2\r\n", "\ufeff\nid,f\na,1\nb,2\n"]
)
def test_line_ends_of_all_kinds_are_cut_right(tmp_path: Path, load_both, content: str):
    (tmp_path / "nodes.csv").write_bytes(content.encode())
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    graph = load_both(FilesSpec(nodes=str(tmp_path / "nodes.csv"), edges=str(tmp_path / "edges.csv")))
    assert graph.ids.tolist() == ["a", "b"]
