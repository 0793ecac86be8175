"""The user's graph as tables: CSV and Parquet, good and bad, and the row that a message names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from trainer.data.graph import Graph
from trainer.errors import InvalidInput
from trainer.spec.data import FilesSpec

NODES = "id,label,f1,f2\na,cat,1,2.5\nb,,3,4\nc,dog,5,6\n"
EDGES = "source,target\na,b\nc,b\n"


@pytest.fixture
def read(tmp_path: Path, load_both) -> Callable[..., Graph]:
    def read(nodes: str | bytes = NODES, edges: str | bytes = EDGES, **options) -> Graph:
        for name, content in (("nodes.csv", nodes), ("edges.csv", edges)):
            (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return load_both(FilesSpec(nodes=str(tmp_path / "nodes.csv"), edges=str(tmp_path / "edges.csv"), **options))

    return read


@pytest.fixture
def read_parquet(tmp_path: Path, load_both) -> Callable[..., Graph]:
    def read(nodes: pd.DataFrame, edges: pd.DataFrame, **options) -> Graph:
        nodes.to_parquet(tmp_path / "nodes.parquet")
        edges.to_parquet(tmp_path / "edges.parquet")
        spec = FilesSpec(nodes=str(tmp_path / "nodes.parquet"), edges=str(tmp_path / "edges.parquet"), **options)
        return load_both(spec)

    return read


def test_csv_gives_ids_labels_features_and_edges(read):
    graph = read()
    assert graph.ids.tolist() == ["a", "b", "c"]
    assert (graph.y.tolist(), graph.classes) == ([0, -1, 1], ("cat", "dog"))
    assert graph.x.tolist() == [[1, 2.5], [3, 4], [5, 6]]
    assert graph.edge_index.T.tolist() == [[1, 0], [0, 1], [2, 1], [1, 2]]
    assert graph.weight is None


def test_parquet_and_csv_and_a_mixture_agree(read_parquet, read, load_both, tmp_path: Path):
    nodes = pd.DataFrame({"id": ["a", "b", "c"], "label": ["cat", None, "dog"], "f1": [1, 3, 5], "f2": [2.5, 4, 6]})
    edges = pd.DataFrame({"source": pd.Categorical(["a", "c"]), "target": ["b", "b"]})
    parquet, text = read_parquet(nodes, edges), read()
    mixed = load_both(FilesSpec(nodes=str(tmp_path / "nodes.parquet"), edges=str(tmp_path / "edges.csv")))
    assert parquet.fingerprint() == text.fingerprint() == mixed.fingerprint()
    assert parquet.y.tolist() == text.y.tolist() == mixed.y.tolist()
    assert parquet.classes == text.classes


@pytest.mark.parametrize(
    "ids, kind",
    [
        (["7", "-3", "0"], "i"),
        (["9223372036854775807", "1", "2"], "i"),
        (["9223372036854775808", "1", "2"], "U"),
        (["07", "7", "8"], "U"),
        (["7.0", "7", "8"], "U"),
        (["NA", "null", "nan"], "U"),
        (["7", "p-8", "9"], "U"),
    ],
)
def test_ids_stay_what_they_are(read, ids, kind):
    nodes = "id,f\n" + "".join(f"{i},1\n" for i in ids)
    graph = read(nodes, f"source,target\n{ids[0]},{ids[1]}\n")
    assert graph.ids.dtype.kind == kind
    assert [str(i) for i in graph.ids] == ids
    assert graph.edge_index.tolist() == [[1, 0], [0, 1]]


def test_parquet_ids_keep_their_type_and_meet_edges_of_another(read_parquet):
    edges = pd.DataFrame({"source": [1], "target": [3]})
    text = read_parquet(pd.DataFrame({"id": ["1", "2", "3"], "f": [1, 2, 3]}), edges)
    assert text.ids.dtype.kind == "U"
    numbers = read_parquet(pd.DataFrame({"id": [1, 2, 3], "f": [1, 2, 3]}), edges.astype(str))
    assert numbers.ids.dtype == np.int64
    assert text.edge_index.tolist() == numbers.edge_index.tolist() == [[2, 0], [0, 2]]


def test_weights_direction_own_column_names_and_foreign_columns(read):
    graph = read(
        "key,f,class\n1,1,10\n2,2,9\n3,3,-1\n",
        "when,to,from,w\nx,2,1,0.5\ny,2,1,0.25\nz,3,3,9\n",
        id_column="key",
        label_column="class",
        source_column="from",
        target_column="to",
        weight_column="w",
        directed=True,
    )
    assert graph.edge_index.tolist() == [[0], [1]]
    assert graph.weight.tolist() == [0.75]
    assert (graph.y.tolist(), graph.classes) == ([1, 0, -1], ("9", "10"))
    assert "removed 1 self loop (the encoder adds its own)" in graph.notes
    assert "merged 1 duplicate edge, adding their weights" in graph.notes
    assert "kept 1 isolated node" in graph.notes


def test_pandas_integers_with_gaps_are_labels(read_parquet):
    nodes = pd.DataFrame({"id": [1, 2, 3], "label": [2.0, None, 0.0], "ok": [True, False, True]})
    graph = read_parquet(nodes, pd.DataFrame({"source": [1], "target": [2]}))
    assert (graph.y.tolist(), graph.classes) == ([1, -1, 0], ("0", "2"))
    assert graph.x.tolist() == [[1], [0], [1]]


def test_unknown_ends_can_be_dropped_and_are_counted(read):
    edges = "source,target,weight\na,b,1\nx,b,2\na,y,3\nc,b,4\n"
    graph = read(edges=edges, drop_unknown=True)
    assert graph.weight.tolist() == [1, 1, 4, 4]
    assert "dropped 2 edges to nodes that are not in nodes.csv" in graph.notes


def test_an_edge_table_without_rows_is_a_graph_without_edges(read):
    graph = read(edges="source,target\n")
    assert graph.num_edges == 0
    assert "no edges" in graph.notes[0]


def test_byte_order_mark_windows_line_ends_quotes_and_blank_lines_are_no_obstacle(read):
    nodes = b'\xef\xbb\xbfid,label,f1,f2\r\n"a","cat",1,2.5\r\n\r\nb,, 3,4\r\nc,dog,5,6\r\n'
    assert read(nodes).fingerprint() == read().fingerprint()


def test_many_rows_and_wide_rows(read):
    n = 60_000  # several of pyarrow's blocks; ids that are text only near the end
    ids = [str(i) for i in range(n - 1)] + ["last"]
    rng = np.random.default_rng(0)
    ends = rng.integers(0, n, (2, 3 * n))
    nodes = "id,f\n" + "".join(f"{i},0.5\n" for i in ids)
    edges = "source,target\n" + "".join(f"{ids[s]},{ids[t]}\n" for s, t in ends.T)
    graph = read(nodes, edges)
    expected = Graph.from_edges(ends, np.full((n, 1), 0.5), ids=ids)
    assert graph.fingerprint() == expected.fingerprint()

    wide = "id," + ",".join(f"f{j}" for j in range(20_000)) + "\n"
    wide += "".join(f"{i}," + ",".join(["0"] * 19_999 + ["1.25"]) + "\n" for i in "abc")
    assert read(wide).x.layout == torch.sparse_csr


LONG = "x" * 257


@pytest.mark.parametrize(
    "nodes, edges, message",
    [
        (
            NODES,
            "source,target\na,b\nc,p-991\n",
            'edges.csv, row 3: node "p-991" is not in .*nodes.csv. Add it there, or',
        ),
        (NODES, "source,target\na,b\n\n\nq,b\n", 'edges.csv, row 5: node "q"'),  # blank lines count
        (NODES, "source,target\na,b\n,b\n", 'edges.csv, row 3: column "source" is empty'),
        (NODES, "source,target\na,b\na\n", "edges.csv, row 3: 1 values for 2 columns"),
        (NODES, "source,target\na,b\na,b,c\n", "edges.csv, row 3: 3 values for 2 columns"),
        (NODES, "source,to\na,b\n", 'edges.csv, row 1: there is no column "target".*data.files.target_column'),
        (NODES, "source:target\na:b\n", 'edges.csv, row 1: there is no column "source", only "source:target"'),
        (NODES, "", "edges.csv: is empty"),
        (NODES, "source,target,weight\na,b,1\nc,b,-2\n", "edges.csv, row 3: weight -2 is negative"),
        (NODES, "source,target,weight\na,b,1\nc,b,NaN\n", 'edges.csv, row 3: column "weight" is empty or not a number'),
        (NODES, "source,target,weight\na,b,inf\n", 'edges.csv, row 2: column "weight" is inf'),
        (NODES, "source,target,weight\na,b,1\nc,b,much\n", 'edges.csv, row 3: column "weight" holds "much"'),
        (NODES, b"source,target\na,b\n\xff,b\n", "edges.csv, row 3: not UTF-8"),
        ("", EDGES, "nodes.csv: is empty"),
        ("id,f\n", EDGES, "nodes.csv: has 0 nodes"),
        ("id,f\na,1\n", EDGES, "nodes.csv: has 1 nodes"),
        ("name,f\na,1\nb,2\n", EDGES, 'nodes.csv, row 1: there is no column "id", only "name", "f"'),
        ("id,f,f\na,1,1\n", EDGES, 'nodes.csv, row 1: 2 columns are called "f"'),
        ("id,f\na,1\nb,2\n\na,3\n", EDGES, 'nodes.csv, row 5: id "a" is already used in row 2'),
        ("id,f\na,1\n,2\n", EDGES, 'nodes.csv, row 3: column "id" is empty'),
        (f"id,f\na,1\n{LONG},2\n", EDGES, "nodes.csv, row 3: the id has more than 256 characters"),
        ("id,f\na,1\nb,\n", EDGES, 'nodes.csv, row 3: column "f" is empty or not a number'),
        ("id,f\na,1\nb,nan\n", EDGES, 'nodes.csv, row 3: column "f" is empty or not a number'),
        ("id,f\na,-inf\nb,1\n", EDGES, 'nodes.csv, row 2: column "f" is -inf'),
        ("id,f\na,1\nb,1e39\n", EDGES, 'nodes.csv, row 3: column "f" overflows: it holds "1e39". Numbers are'),
        ("id,f,city\na,1,2\n\nb,2,Paris\nc,2,Rome\n", EDGES, 'nodes.csv, row 4: column "city" holds "Paris"'),
        ("id,f\na,1\nb,2,3\n", EDGES, "nodes.csv, row 3: 3 values for 2 columns"),
        (b"id,f\xff\na,1\n", EDGES, "nodes.csv, row 1: not UTF-8"),
        (b"id,f\na,1\nb\xff,2\n", EDGES, "nodes.csv, row 3: not UTF-8"),
        ("id,label,f\na,0,1\nb,-5,2\n", "source,target\na,b\n", "nodes.csv, row 3: label -5"),
    ],
)
def test_bad_csv_is_refused_with_file_row_and_remedy(read, tmp_path: Path, nodes, edges, message):
    with pytest.raises(InvalidInput, match=message) as failure:
        read(nodes, edges)
    assert str(failure.value).startswith(str(tmp_path))
    assert str(failure.value).endswith(".")


def test_a_bad_value_deep_in_a_large_file_is_found(read):
    rows = [f"{i},0.5" for i in range(200_000)]
    rows[123_456] = "123456,half"
    with pytest.raises(InvalidInput, match='row 123458: column "f" holds "half"'):
        read("id,f\n" + "\n".join(rows))
    rows[123_456] = "123456"
    with pytest.raises(InvalidInput, match="row 123458: 1 values for 2 columns"):
        read("id,f\n" + "\n".join(rows))


FRAME = pd.DataFrame({"id": [1, 2, 3], "f": [1.0, 2.0, 3.0]})
PAIR = pd.DataFrame({"source": [1, 2], "target": [2, 3]})


@pytest.mark.parametrize(
    "nodes, edges, message",
    [
        (FRAME, PAIR + 1, 'edges.parquet, row 3: node "4" is not in'),
        (FRAME, PAIR.assign(weight=[1.0, None]), 'edges.parquet, row 3: column "weight" is'),
        (FRAME.assign(f=[1, np.inf, 2]), PAIR, 'nodes.parquet, row 3: column "f" is inf'),
        (FRAME.assign(city=[None, "Paris", "Rome"]), PAIR, 'nodes.parquet, row 3: column "city" holds "Paris"'),
        (FRAME.assign(id=[1, 1, 2]), PAIR, 'nodes.parquet, row 3: id "1" is already used in row 2'),
        (FRAME.assign(id=["a", None, "b"]), PAIR, 'nodes.parquet, row 3: column "id" is empty'),
        (FRAME.assign(id=[0.5, 1, 2]), PAIR, 'nodes.parquet: column "id" has type double'),
        (FRAME.assign(label=[0.5, 1, 2]), PAIR, "nodes.parquet, row 2: label 0.5"),
        (FRAME.assign(label=[0, -4, 2]), PAIR, "nodes.parquet, row 3: label -4"),
        (FRAME[:0], PAIR, "nodes.parquet: has 0 nodes"),
    ],
)
def test_bad_parquet_is_refused_with_file_and_row(read_parquet, nodes, edges, message):
    with pytest.raises(InvalidInput, match=message):
        read_parquet(nodes, edges)


def test_columns_that_the_user_named_must_be_there(read):
    with pytest.raises(InvalidInput, match=r'no column "lable".*data\.files\.label_column'):
        read(label_column="lable")
    with pytest.raises(InvalidInput, match=r'no column "w".*data\.files\.weight_column'):
        read(weight_column="w")


def test_missing_and_foreign_files_are_refused(load_both, tmp_path: Path):
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "fake.parquet").write_text(NODES)
    for edges, message in [
        ("edges.csv", r"edges.csv: no such file. Check data.files.edges"),
        ("edges.xlsx", r"must end in .csv, .tsv, .csv.gz, .tsv.gz or .parquet"),
        ("fake.parquet", r"fake.parquet: cannot be read"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            load_both(FilesSpec(nodes=str(tmp_path / "nodes.csv"), edges=str(tmp_path / edges)))
