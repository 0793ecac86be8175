"""Tables as people have them: other separators, compressed, truth values, lists, an index; and all mistakes at once."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.errors import InvalidInput
from trainer.spec.data import FilesSpec

NODES = "id,label,f1,f2\na,cat,1,2.5\nb,,3,4\nc,dog,5,6\n"
EDGES = "source,target\na,b\nc,b\n"


@pytest.fixture
def load(tmp_path: Path, load_both):
    def load(nodes: str | bytes, edges: str | bytes = EDGES, names=("nodes.csv", "edges.csv"), **options):
        for name, content in zip(names, (nodes, edges), strict=True):
            (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return load_both(FilesSpec(nodes=str(tmp_path / names[0]), edges=str(tmp_path / names[1]), **options))

    return load


@pytest.mark.parametrize(
    "mark, names",
    [
        (",", ("nodes.CSV", "edges.csv")), (";", ("nodes.csv", "edges.csv")), ("|", ("nodes.csv", "edges.csv")),
        ("\t", ("nodes.tsv", "edges.tsv")), ("\t", ("nodes.csv", "edges.csv")),
        (",", ("nodes.csv.gz", "edges.csv.gz")), ("\t", ("nodes.tsv.gz", "edges.csv")),
        ("\t", ("nodes.TSV.GZ", "edges.csv")),
    ],
)  # fmt: skip
def test_every_separator_and_compression_gives_the_same_graph(load, mark, names):
    contents = [
        (gzip.compress(text.encode()) if name.lower().endswith(".gz") else text)
        for name, text in zip(names, (NODES.replace(",", mark), EDGES.replace(",", mark)), strict=True)
    ]
    graph = load(*contents, names=names)
    assert graph.fingerprint() == load(NODES).fingerprint()


def test_separators_inside_of_names_and_values_do_not_mislead(load):
    graph = load('id,a|b|c,"x;y"\np,1,2\nq,3,4\n', "source\ttarget,or end\np\tq\n", target_column="target,or end")
    assert graph.x.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("pack", [False, True])
def test_a_text_longer_than_csv_reads_does_not_matter_where_it_is_not_read(load, pack):
    nodes = f"id,abstract,f\na,{'x' * 200_000},1\nb,y|z,2\n".encode()
    names = ("nodes.csv.gz", "edges.csv") if pack else ("nodes.csv", "edges.csv")
    content = gzip.compress(nodes) if pack else nodes
    graph = load(content, "source,target\na,b\n", names=names, ignore_columns=("abstract",))
    assert graph.x.tolist() == [[1], [2]]


@pytest.mark.parametrize(
    "nodes, edges, features",
    [
        ("id,f,genre a|b|c|d\n1,1,x|y|z|w\n2,3,p|q|r|s\n", "source,target\n1,2\n", ("f",)),
        ("id;Höhe, m\n1;1,83\n2;3\n", "source;target\n1;2\n", ("Höhe, m",)),
        ("id,f\n1,1\n2,3\n", "a;b;c;d,source,target\nx;y;z;w,1,2\n", ("f",)),
    ],
)
def test_columns_that_must_be_there_decide_what_separates(load, nodes, edges, features):
    graph = load(nodes, edges, feature_columns=features)
    assert graph.num_nodes == 2
    assert graph.num_edges == 2
    assert graph.x[1].tolist() == [3]


def test_decimal_commas_where_semicolons_separate(load):
    assert load("id;f\na;1,5\nb;-0,25\nc;2\n", "source;target\na;b\n").x.tolist() == [[1.5], [-0.25], [2]]


def test_decimal_commas_with_exponents_or_without_a_leading_digit(load):
    frame = pd.DataFrame({"id": ["a", "b", "c"], "f": [1.5e-7, -2.25, 1e-12]})
    nodes = frame.to_csv(index=False, sep=";", decimal=",")
    assert "1,5e-07" in nodes
    edges = "source;target;weight\na;b;,5\nb;c;1,5E+1\n"
    graph = load(nodes, edges)
    assert graph.x.flatten().tolist() == frame["f"].to_numpy(dtype=np.float32).tolist()
    assert sorted(graph.weight.tolist()) == [0.5, 0.5, 15, 15]


def test_a_damaged_archive_is_refused(load):
    content = gzip.compress(NODES.encode() * 50)
    with pytest.raises(InvalidInput, match=r"nodes\.csv\.gz: is a damaged gzip file \(.+\)\. Compress it anew\."):
        load(content[:-30], names=("nodes.csv.gz", "edges.csv"))


@pytest.mark.parametrize("damage", ["cut", "changed", "checksum", "no gzip"])
@pytest.mark.parametrize("which", ["nodes", "edges"])
def test_an_archive_damaged_behind_its_header_is_refused(load, damage, which):
    good = "source,target,weight\n" if which == "edges" else "id,f1,f2\n"
    rows = np.random.default_rng(0).random(9_000)
    text = good + "".join(
        f"a,b,{row}\n" if which == "edges" else f"{number},{row},1\n" for number, row in enumerate(rows)
    )
    content = gzip.compress(text.encode())
    half = len(content) // 2
    content = {
        "cut": content[:half],
        "changed": content[:half] + bytes(200) + content[half + 200 :],
        "checksum": content[:-8] + b"12345678",
        "no gzip": text.encode(),
    }[damage]
    tables = {"nodes": NODES, "edges": EDGES} | {which: content}
    names = tuple(f"{key}.csv" + ".gz" * (key == which) for key in tables)
    with pytest.raises(InvalidInput, match=rf"{which}\.csv\.gz: is a damaged gzip file \(.+\)\. Compress it anew\."):
        load(*tables.values(), names=names)


def test_truth_values_in_csv_are_numbers(load):
    graph = load("id,ok,f\na,True,1\nb,false,2\nc, TRUE,3\n")
    assert graph.x.tolist() == [[1, 1], [0, 2], [1, 3]]


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 3), pa.large_list(pa.float64())])
@pytest.mark.parametrize("columns", [0, 60])
def test_lists_of_numbers_are_features(tmp_path: Path, load_both, kind, columns):
    x = np.random.default_rng(0).random((40, 3 + columns), dtype=np.float32)
    table = {"id": pa.array(range(40)), "vector": pa.array(x[:, :3].tolist(), kind)}
    table |= {f"f{j}": x[:, 3 + j] for j in range(columns)}
    pq.write_table(pa.table(table), tmp_path / "nodes.parquet", row_group_size=16)
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n")
    graph = load_both(FilesSpec(nodes=str(tmp_path / "nodes.parquet"), edges=str(tmp_path / "edges.csv")))
    assert np.array_equal(graph.x.numpy(), x)


@pytest.mark.parametrize(
    "column, says",
    [
        ([[1.0, 2.0], [1.0], None, [3.0, 4.0]], 'row 3: column "v" holds 1 number, but row 2 holds 2'),
        ([[], None, [1.0, 2.0], [3.0, 4.0]], 'row 2: column "v" holds no numbers, but row 4 holds 2.*rows 2, 3'),
        ([[1.0, 2.0], [1.0, 1e60], [None, 1.0], [3.0, 4.0]], 'row 3: column "v" overflows: it holds "1e'),
        ([[1.0, 2.0], [1.0, None], [0.0, 0.0], [3.0, float("inf")]], 'row 3: .* missing or not finite.*rows 3, 5'),
        ([[], [], [], []], 'the lists of column "v" are empty'),
    ],
)  # fmt: skip
def test_bad_lists_are_refused(tmp_path: Path, load_both, column, says):
    pq.write_table(
        pa.table({"id": [0, 1, 2, 3], "v": pa.array(column, pa.list_(pa.float64()))}), tmp_path / "n.parquet"
    )
    (tmp_path / "edges.csv").write_text("source,target\n0,1\n")
    with pytest.raises(InvalidInput, match=says):
        load_both(FilesSpec(nodes=str(tmp_path / "n.parquet"), edges=str(tmp_path / "edges.csv")))


def test_columns_can_be_ignored_or_named(load):
    nodes = "id,name,f1,f2\na,Ann,1,2\nb,Bob,3,4\nc,Cid,5,6\n"
    assert load(nodes, ignore_columns=("name",)).x.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert load(nodes, feature_columns=("f2",)).x.tolist() == [[2], [4], [6]]
    assert load(nodes, feature_columns=("f2",), ignore_columns=("name",)).x.tolist() == [[2], [4], [6]]
    for options, says in [
        ({"ignore_columns": ("nam",)}, 'no column "nam".*data.files.ignore_columns'),
        ({"feature_columns": ("id",)}, '"id" is the column of ids'),
        ({"ignore_columns": ("id", "name")}, 'ignore_columns: "id" is the column of ids'),
        (
            {"feature_columns": ("f2", "f1"), "ignore_columns": ("f1",)},
            '"f1" is in both feature_columns and ignore_col',
        ),
        ({"feature_columns": ("f1",), "ignore_columns": ("f1",)}, '"f1" is in both'),
        ({"ignore_columns": ("name", "f1", "f2")}, "no feature columns"),
    ]:
        with pytest.raises(InvalidInput, match=says):
            load(nodes, **options)


@pytest.mark.parametrize("options", [{}, {"label_column": "label"}, {"feature_columns": ("f1", "f2")}])
def test_labels_that_are_ignored_are_not_read(load, options):
    graph = load(NODES, ignore_columns=("label",), **options)
    assert (graph.y, graph.classes) == (None, ())
    assert graph.x.tolist() == [[1, 2.5], [3, 4], [5, 6]]


def test_thousands_of_named_columns_are_found(load):
    names = [f"f{number}" for number in range(10_000)]
    nodes = f"id,other,{','.join(names)}\n" + "".join(f"{row},no{',1' * 10_000}\n" for row in "ab")
    assert load(nodes, "source,target\na,b\n", feature_columns=tuple(names[::-1])).num_features == 10_000


def test_the_index_of_pandas_is_never_a_feature(load, tmp_path: Path, load_both):
    frame = pd.DataFrame({"id": ["a", "b", "c"], "f": [1, 2, 3]}, index=[7, 8, 9])
    with pytest.raises(InvalidInput, match="a column without a name looks like the index that pandas writes"):
        load(frame.to_csv())
    with pytest.raises(InvalidInput, match='column "Unnamed: 0" looks like the index'):
        load(frame.rename_axis("Unnamed: 0").to_csv())
    assert load(frame.to_csv(), ignore_columns=("",)).x.tolist() == [[1], [2], [3]]
    frame.to_parquet(tmp_path / "n.parquet")
    with pytest.raises(InvalidInput, match='column "__index_level_0__" looks like the index'):
        load_both(FilesSpec(nodes=str(tmp_path / "n.parquet"), edges=str(tmp_path / "edges.csv")))


@pytest.mark.parametrize(
    "nodes, edges, says",
    [
        (
            "id,city,f,kind\na,Paris,1,x\nb,2,y,3\n\nc,Rome,3,z\n", EDGES,
            'row 2: column "city" holds "Paris", which is not a number. There are 5 such values: column "city" in rows '
            '2, 5; column "f" in row 3; column "kind" in rows 2, 5. Turn',
        ),
        ("id,f\na,\nb,inf\nc,nan\n", EDGES, 'row 2: column "f" is empty.* 3 such values: column "f" in rows 2, 3, 4. '),
        ("id,f\na,1e40\nb,inf\nc,-1e39\n", EDGES, 'row 2: .*overflows.*There are 2 such values: .* rows 2, 4'),
        ("id,f\na,1,2\nb\nc,3\nd,4,5\n", EDGES, "row 2: 3 values for 2 columns. There are 3 such rows: rows 2, 3, 5."),
        ("id;f\na;1;2\n", "source;target\n", "between semicolons"),
        (b"id,f\n\xff,1\nb,\xfe\nc,1\n", EDGES, "row 2: not UTF-8. There are 2 such rows: rows 2, 3."),
        (NODES, "source,target\na,x\nb,c\ny,z\n", 'row 2: node "x".* 2 such edges: row 2 "x", row 4 "y". Add it'),
        (
            "id,f\n" + "".join(f"{i},no\n" for i in range(100)), EDGES,
            "There are 100 such values: .* 20, 21 and 80 more. Turn",
        ),
    ],
)  # fmt: skip
def test_all_mistakes_of_a_kind_are_told_at_once(load, nodes, edges, says):
    with pytest.raises(InvalidInput, match=says):
        load(nodes, edges)


def test_overflow_in_parquet_says_overflow(tmp_path: Path, load_both):
    pd.DataFrame({"id": [1, 2, 3], "f": [1.0, 1e39, np.nan]}).to_parquet(tmp_path / "n.parquet")
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n")
    with pytest.raises(InvalidInput, match='row 3: column "f" overflows: it holds "1e'):
        load_both(FilesSpec(nodes=str(tmp_path / "n.parquet"), edges=str(tmp_path / "edges.csv")))
