"""Ids and labels of graphs in memory: whose label is whose, and which end is which node."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from trainer.data.sources.identity import find
from trainer.data.sources.memory import graph_of
from trainer.errors import InvalidInput

EDGES = [[0, 1, 2], [1, 2, 3]]
X = np.eye(4, 3)
IDS = ["a", "b", "c", "d"]


def classes(graph) -> list[str]:
    return [([*graph.classes, ""])[number] for number in graph.y.tolist()]


@pytest.mark.parametrize("make", [dict, pd.Series], ids=["dict", "series"])
@pytest.mark.parametrize("ids", [IDS, [7, 5, 6, 4], None], ids=["text", "numbers", "none"])
def test_labels_by_id_are_their_nodes_whatever_their_order(make, ids):
    names = ids or range(4)
    given = dict(zip(names, ["x", "y", "y", "z"], strict=True))
    turned = make(dict(reversed(given.items())))
    graph, _ = graph_of((EDGES, X), ids=ids, labels=turned)
    assert classes(graph) == ["x", "y", "y", "z"]
    some = make({names[3]: "z", names[0]: "x"})
    assert classes(graph_of((EDGES, X), ids=ids, labels=some)[0]) == ["x", "", "", "z"]


def test_a_series_in_plain_order_is_in_the_order_of_the_nodes():
    graph, _ = graph_of((EDGES, X), ids=pd.Series(IDS), labels=pd.Series(["x", "y", "y", "z"]))
    assert classes(graph) == ["x", "y", "y", "z"]


@pytest.mark.parametrize(
    "options, said",
    [
        ({"labels": {"a": 0, "q": 1}}, "labels: there is no node with the id 'q'"),
        ({"labels": {"a": 0, None: 1}}, "labels: the id in place 1 is missing"),
        ({"labels": pd.Series([0, 1], index=["a", "a"])}, "the index has 'a' twice"),
        ({"labels": [0, 1, np.inf, 1]}, "label inf is not a class"),
        ({"ids": dict.fromkeys(IDS)}, "ids are a mapping"),
        ({"ids": pd.Series(IDS, index=[3, 2, 1, 0])}, "ids are a Series with an index of its own"),
        ({"ids": [["a"], ["b"], ["c"], ["d"]]}, "that of node 0 is a list"),
    ],
)
def test_what_belongs_to_no_node_is_refused(options, said):
    with pytest.raises(InvalidInput, match=said):
        graph_of((EDGES, X), **{"ids": IDS} | options)


def nodes(ids) -> pd.DataFrame:
    return pd.DataFrame({"id": ids, "f": range(len(ids))})


def test_whole_numbers_held_as_floats_are_the_same_ids():
    ends = pd.DataFrame({"source": [1.0, 2.0], "target": [2, 3]})
    graph, _ = graph_of((nodes([1, 2, 3]), ends))
    assert graph.edge_index.T.tolist() == [[1, 0], [0, 1], [2, 1], [1, 2]]
    graph, given = graph_of((nodes([1.0, 2.0, 3.0]), ends))
    assert (graph.ids.tolist(), given.tolist()) == ([1, 2, 3], [1.0, 2.0, 3.0])


@pytest.mark.parametrize("gap", [np.nan, None], ids=["float", "object"])
def test_a_missing_end_is_reported_as_a_row_of_the_edges(gap):
    ends = pd.DataFrame({"source": [1, 2], "target": pd.Series([2, gap])})
    with pytest.raises(InvalidInput, match="edges, row 1: target is missing"):
        graph_of((nodes([1, 2, 3]), ends))


def test_large_ids_are_not_confused():
    large = 2**53
    stored = np.array([large, large + 1], dtype=np.int64)
    assert find(stored, np.array([large + 1, large + 2], dtype=np.uint64)).tolist() == [1, -1]
    assert find(stored, np.array([large + 1, 2**64 - 1], dtype=np.uint64)).tolist() == [1, -1]
    assert graph_of((EDGES, X), ids=[2**64, 2**63, 1, -1])[0].ids.tolist() == [str(2**64), str(2**63), "1", "-1"]


@pytest.mark.parametrize(
    "frame, said",
    [
        (pd.DataFrame({"Unnamed: 0": [0, 1], "id": ["a", "b"]}), 'column "Unnamed: 0"'),
        (pd.DataFrame({"node_id": [10, 11], "f": [0.5, 1.0]}), 'no column "id".*node_id'),
    ],
)
def test_a_column_that_numbers_rows_or_names_nodes_is_no_feature(frame, said):
    with pytest.raises(InvalidInput, match=said):
        graph_of((frame, pd.DataFrame({"source": ["a"], "target": ["b"]})))
