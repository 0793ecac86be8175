"""What can be asked of embeddings in Python."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pandas as pd
import pytest
import torch

import trainer
from trainer.errors import InvalidInput
from trainer.interactive.card import plane

N, HALF = 60, 30
SPEC = {
    "method": "grace", "encoder": {"hidden": 16, "dim": 8}, "optimiser": {"epochs": 20},
    "evaluation": {"probe_epochs": 20, "cluster_seeds": 1, "figures": False}, "run": {"threads": 1},
}  # fmt: skip


def two_groups():
    """Frames of two groups with few edges between them and features that tell them apart."""
    rng = np.random.default_rng(0)
    group = np.arange(N) // HALF
    ends = np.array(
        [(a, b) for a in range(N) for b in range(a) if rng.random() < (0.3 if group[a] == group[b] else 0.01)]
    )
    x = rng.normal(size=(N, 5)) + 3 * group[:, None]
    ids = np.array([f"<p{number}>" for number in range(N)])
    nodes = pd.DataFrame(x, columns=list("abcde"))
    nodes.insert(0, "id", ids)
    nodes["label"] = np.where(group == 0, "left", "right")
    return nodes, pd.DataFrame({"source": ids[ends[:, 0]], "target": ids[ends[:, 1]]})


@pytest.fixture(scope="module")
def found():
    return trainer.fit(two_groups(), spec=SPEC)


def test_vectors_and_ids_belong_together(found):
    assert found.vectors.shape == (len(found), 8) == (N, 8)
    frame = found.frame()
    assert list(frame.columns) == ["id", *(f"v{column}" for column in range(8))]
    np.testing.assert_array_equal(found.lookup(["<p7>", "<p3>"]), found.vectors[[7, 3]])
    np.testing.assert_array_equal(frame.set_index("id").loc["<p7>"].to_numpy(np.float32), found.vectors[7])


def test_neighbors_are_those_of_a_dense_cosine(found):
    unit = found.vectors / np.linalg.norm(found.vectors, axis=1, keepdims=True)
    cosine = unit @ unit[4]
    cosine[4] = -2
    best = np.argsort(-cosine)[:7]
    ids, scores = zip(*found.neighbors("<p4>", 7), strict=True)
    assert set(ids) == set(found.ids[best])
    np.testing.assert_allclose(scores, cosine[best], atol=1e-6)
    assert len(found.neighbors("<p4>", 1000)) == N - 1


def test_the_encoder_is_a_module_that_gives_the_vectors_again(found):
    assert isinstance(found.encoder, torch.nn.Module)
    assert not found.encoder.training
    np.testing.assert_array_equal(trainer.embed(found.directory, found.graph), found.vectors)


@pytest.mark.parametrize("features", ["raw", "zscore"])
def test_a_new_node_is_embedded_as_if_it_had_been_in_the_graph(features):
    nodes, edges = two_groups()
    found = trainer.fit((nodes, edges), spec={**SPEC, "data": {"features": features}})
    fresh = pd.DataFrame({"id": ["new", "newer"], **{name: [0.5, 3.0] for name in "abcde"}})
    links = pd.DataFrame({"source": ["new", "<p1>", "newer"], "target": ["<p0>", "new", "new"]})
    got = found.embed((fresh, links))
    by_list = found.embed(fresh[list("abcde")].to_numpy()[:1], neighbors=[["<p0>", "<p1>"]])
    alone = found.embed((fresh[:1], links[:2]))
    np.testing.assert_array_equal(by_list, alone)
    if features == "raw":
        together = pd.concat([nodes, fresh]), pd.concat([edges, links])
        whole = trainer.embed(found.directory, trainer.fit(together, spec=SPEC).graph)
        np.testing.assert_allclose(got, whole[-2:], atol=1e-5)


def test_classes_are_told_from_a_few_labels(found):
    few = {f"<p{number}>": "left" if number < HALF else "right" for number in (*range(6), *range(54, 60))}
    told = found.classify(few)
    assert set(told.ids) == set(found.ids) - set(few)
    right = [label == ("left" if int(node[2:-1]) < HALF else "right") for node, label in zip(told.ids, told.labels)]  # noqa: B905
    assert np.mean(right) > 0.9
    assert list(told.frame().columns) == ["id", "label", "confidence"]
    in_order = [few.get(node) for node in found.ids]
    assert found.classify(in_order).labels.tolist() == told.labels.tolist()


def test_it_introduces_itself_in_text_and_in_html(found):
    assert repr(found) == "Embeddings(60 nodes × 8, grace, 20 epochs, in a temporary directory)"
    html = found._repr_html_()
    assert html.count("<circle") == N
    assert "&lt;p0&gt;: left" in html
    assert "<p0>" not in html
    assert "linear probe" in html


def test_the_map_is_the_plane_of_largest_variance():
    rng = np.random.default_rng(1)
    flat = np.linalg.qr(np.hstack([np.ones((50, 1)), rng.normal(size=(50, 2))]))[0][:, 1:] * [100, 30]
    turn, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    points = plane(np.hstack([flat, 0.01 * rng.normal(size=(50, 4))]) @ turn)
    assert abs(np.corrcoef(points[:, 0], flat[:, 0])[0, 1]) > 0.99
    assert abs(np.corrcoef(points[:, 1], flat[:, 1])[0, 1]) > 0.99


def test_a_temporary_run_lasts_as_long_as_its_embeddings():
    found = trainer.fit(two_groups(), spec=SPEC)
    directory, vectors = found.directory, found.vectors
    assert (directory / "spec.json").exists()
    before = vectors.copy()
    del found
    gc.collect()
    assert not directory.exists()
    np.testing.assert_array_equal(vectors, before)


@pytest.mark.parametrize(
    "ask, said",
    [
        (lambda found: found.neighbors("p4"), r"there is no node with the id 'p4'. Ids here look like '<p0>'"),
        (lambda found: found.neighbors("<p4>", 0), "k is 0"),
        (lambda found: found.neighbors(["<p4>"]), "there is no node with the id"),
        (lambda found: found.embed(np.ones((1, 4))), "nodes have 4 features; the graph has 5"),
        (lambda found: found.embed(neighbors=[["<p0>"]]), "give the 5 features"),
        (lambda found: found.embed(np.ones((2, 5)), neighbors=[["<p0>"]]), "2 rows of features and 1 lists"),
        (lambda found: found.embed(np.ones((1, 5)), neighbors=["<p0>"]), "a list of ids for each"),
        (lambda found: found.embed(np.ones((1, 5)), neighbors=[["x"]]), r"neighbors\[0\]: there is no node"),
        (lambda found: found.embed(), "give the features"),
        (lambda found: found.embed(two_groups()), "is in the graph that was trained on"),
        (lambda found: found.classify(["left"]), "1 labels for 60 nodes"),
        (lambda found: found.classify({"<p0>": "left", "<p1>": "left"}), "one class"),
        (lambda found: trainer.Embeddings.open(found.directory / "nothing"), "holds no finished run"),
    ],
)  # fmt: skip
def test_questions_that_have_no_answer_get_a_remedy(ask, said, found):
    with pytest.raises(InvalidInput, match=said):
        ask(found)


def test_features_of_new_nodes_are_matched_by_name(found):
    fresh = pd.DataFrame({"id": ["new"], **{name: [float(at)] for at, name in enumerate("abcde")}})
    links = pd.DataFrame({"source": ["new"], "target": ["<p0>"]})
    turned = fresh[["e", "id", "d", "c", "b", "a"]]
    np.testing.assert_array_equal(found.embed((turned, links)), found.embed((fresh, links)))
    by_frame = found.embed(turned.drop(columns="id"), neighbors=[["<p0>"]])
    np.testing.assert_array_equal(by_frame, found.embed((fresh, links)))
    with pytest.raises(InvalidInput, match=r"the new nodes lack the features c. Add"):
        found.embed((fresh.rename(columns={"c": "C"}), links))
    with pytest.raises(InvalidInput, match=r"the graph has no features f. Leave"):
        found.embed((fresh.assign(f=1.0), links))


def test_labels_of_a_series_are_taken_by_its_index(found):
    few = {f"<p{number}>": "left" if number < HALF else "right" for number in (*range(6), *range(54, 60))}
    expected = found.classify(few)
    turned = pd.Series({name: few.get(name) for name in reversed(found.ids.tolist())})
    assert found.classify(turned).labels.tolist() == expected.labels.tolist()


def test_a_kept_run_survives_pickle_and_a_temporary_one_says_what_to_do(found, tmp_path):
    kept = trainer.fit(two_groups(), tmp_path / "run", spec=SPEC)
    before, _ = kept.vectors.copy(), kept.encoder
    again = pickle.loads(pickle.dumps(kept))
    np.testing.assert_array_equal(again.vectors, before)
    assert again.neighbors("<p4>", 3) == kept.neighbors("<p4>", 3)
    assert again.graph.fingerprint() == kept.graph.fingerprint()
    with pytest.raises(InvalidInput, match="a run_dir"):
        pickle.dumps(found)
    assert copy.deepcopy(found) is found
