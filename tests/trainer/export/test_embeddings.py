"""Exported embeddings: by the user's ids, vouched for by a manifest that comes last, and found again after a kill."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.data.graph import Graph
from trainer.errors import InvalidInput, NonFinite
from trainer.export.embeddings import export_embeddings, read_embeddings, read_encoder
from trainer.export.layerwise import model_digest
from trainer.nn.encoder import Encoder
from trainer.nn.views import Propagation
from trainer.spec.encoder import EncoderSpec

NUMBERS = np.array([10, 7, 2**40, 3, -1])
FILES = ("vectors.npy", "ids.npy", "encoder.safetensors")  # of a graph without labels
NAMES = np.array(["a", "ü", 'c "c"\n', "", "日本"])


def ring(ids=None, x=None) -> Graph:
    nodes = np.arange(5)
    x = np.random.default_rng(0).standard_normal((5, 4)) if x is None else x
    return Graph.from_edges([nodes, (nodes + 1) % 5], x, ids=ids, name="ring")


def make_encoder(features: int = 4) -> Encoder:
    return Encoder(features, EncoderSpec(hidden=8, dim=6), generator=torch.Generator().manual_seed(0))


def export(directory: Path, graph: Graph, encoder: Encoder | None = None, **options) -> Path:
    return export_embeddings(
        directory, encoder or make_encoder(), graph, graph_sha256=graph.fingerprint(), **options
    )  # fmt: skip


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("ids", [NUMBERS, NAMES])
def test_embeddings_keep_the_users_ids_in_order(tmp_path, ids, mapped):
    graph, encoder = ring(ids), make_encoder()
    expected = encoder.eval()(graph.x, Propagation(graph.indptr, graph.indices).whole()).detach().numpy()
    if mapped:
        graph.save(tmp_path / "graph")
        graph = Graph.open(tmp_path / "graph")
    file = export(tmp_path / "out", graph, encoder, epoch=3)
    vectors, stored_ids = read_embeddings(tmp_path / "out")
    assert file == tmp_path / "out" / "vectors.npy"
    assert np.allclose(vectors, expected, rtol=1e-5, atol=1e-6)
    assert stored_ids.tolist() == ids.tolist()
    assert stored_ids.dtype.kind == ids.dtype.kind


@pytest.mark.parametrize("ids", [NUMBERS, NAMES])
def test_some_rows_come_with_their_own_ids(tmp_path, ids):
    export(tmp_path / "all", ring(ids))
    export(tmp_path / "some", ring(ids), rows=range(1, 4))
    vectors, stored_ids = read_embeddings(tmp_path / "some")
    assert stored_ids.tolist() == ids[1:4].tolist()
    assert np.allclose(vectors, read_embeddings(tmp_path / "all")[0][1:4], rtol=1e-5, atol=1e-6)


def test_the_manifest_vouches_for_every_file_and_says_where_they_come_from(tmp_path):
    graph = ring()
    export(tmp_path, graph, epoch=3, dataset="ring")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    files = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in FILES}
    assert manifest == {
        "rows": 5, "dim": 6, "dtype": "float32", "id_type": "int", "files": files, "epoch": 3, "dataset": "ring",
        "graph_sha256": graph.fingerprint(), "model_sha256": model_digest(make_encoder()),
    }  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == {*FILES, "manifest.json"}


def test_many_text_ids_are_one_json_list(tmp_path):
    n = 100_000  # more than are written at a time
    ids = np.array([f"node {number}, a rather long name for a node" for number in range(n)])
    graph = Graph.from_edges([[0], [1]], np.ones((n, 4), np.float32), ids=ids)
    export(tmp_path, graph)
    assert json.loads((tmp_path / "ids.json").read_text(encoding="utf-8")) == ids.tolist()


def test_changed_or_unfinished_embeddings_are_not_served(tmp_path):
    with pytest.raises(InvalidInput, match="no finished embeddings"):
        read_embeddings(tmp_path)
    file = export(tmp_path, ring())
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match="checksum"):
        read_embeddings(tmp_path)


@pytest.mark.parametrize("ids, named", [(NUMBERS, "3"), (NAMES, "''")])
def test_non_finite_embeddings_are_refused_by_node_id_and_nothing_is_published(tmp_path, ids, named):
    export(tmp_path, ring(ids))  # an earlier export must not be served in place of the refused one
    x = np.zeros((5, 4), np.float32)
    x[3] = 3e38
    graph = Graph.from_edges([[0], [1]], x, ids=ids)
    encoder = make_encoder()
    with torch.no_grad():
        encoder.weights[0].fill_(1)
    with pytest.raises(NonFinite, match=f"node {re.escape(named)} "):
        export(tmp_path, graph, encoder)
    assert not (tmp_path / "manifest.json").exists()
    with pytest.raises(InvalidInput, match="no finished embeddings"):
        read_embeddings(tmp_path)


def test_interrupted_after_the_vectors_are_there_only_the_rest_is_done_again(tmp_path):
    (tmp_path / "ids.npy" / "in the way").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        export(tmp_path, ring())
    assert not (tmp_path / "manifest.json").exists()
    before = (tmp_path / "vectors.npy").stat()
    shutil.rmtree(tmp_path / "ids.npy")
    export(tmp_path, ring(), progress=lambda done, total: pytest.fail("vectors were computed again"))
    assert (tmp_path / "vectors.npy").stat().st_ino == before.st_ino
    export(tmp_path / "whole", ring())
    assert read_embeddings(tmp_path)[0].tobytes() == read_embeddings(tmp_path / "whole")[0].tobytes()
    assert {path.name for path in (tmp_path / "whole").iterdir()} == {*FILES, "manifest.json"}
    assert {path.name for path in tmp_path.iterdir()} == {*FILES, "manifest.json", "whole"}


def labelled(n: int = 5) -> Graph:
    nodes = np.arange(n)
    y = np.where(nodes % 3 == 2, -1, nodes % 3)
    x = np.random.default_rng(0).standard_normal((n, 4))
    return Graph.from_edges([nodes, (nodes + 1) % n], x, y=y, classes=("red", "grün"))


@pytest.mark.parametrize("mapped", [False, True])
def test_labels_are_the_users_own_and_vouched_for(tmp_path, mapped):
    graph = labelled()
    if mapped:
        graph.save(tmp_path / "graph")
        graph = Graph.open(tmp_path / "graph")
    export(tmp_path / "out", graph)
    labels = np.load(tmp_path / "out" / "labels.npy", allow_pickle=False)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (labels.dtype, labels.tolist()) == (np.int32, [0, 1, -1, 0, 1])
    assert manifest["classes"] == ["red", "grün"]
    assert manifest["files"]["labels.npy"] == hashlib.sha256(
        (tmp_path / "out" / "labels.npy").read_bytes()
    ).hexdigest()  # fmt: skip
    assert read_embeddings(tmp_path / "out")[0].shape == (5, 6)


def test_some_rows_come_with_their_own_labels_and_without_labels_none_stay(tmp_path):
    export(tmp_path, labelled(), rows=range(1, 4))
    assert np.load(tmp_path / "labels.npy").tolist() == [1, -1, 0]
    assert len(read_embeddings(tmp_path)[0]) == 3
    export(tmp_path, ring())
    assert {path.name for path in tmp_path.iterdir()} == {*FILES, "manifest.json"}
    assert "classes" not in json.loads((tmp_path / "manifest.json").read_text())


def test_labels_change_no_vector(tmp_path):
    export(tmp_path / "with", labelled())
    export(tmp_path / "without", ring())
    assert (tmp_path / "with" / "vectors.npy").read_bytes() == (tmp_path / "without" / "vectors.npy").read_bytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ["prelu", "rrelu_random"])
def test_the_exported_encoder_is_the_one_that_made_the_vectors(tmp_path, dtype, activation):
    spec = EncoderSpec(hidden=8, dim=6, layers=3, activation=activation)
    encoder = Encoder(4, spec, generator=torch.Generator().manual_seed(3)).to(dtype)
    for name, parameter in encoder.named_parameters():
        if name.endswith("slope"):
            torch.nn.init.constant_(parameter, 0.125)  # as if learned
    graph = ring()
    export(tmp_path, graph, encoder)
    again = read_encoder(tmp_path / "encoder.safetensors", EncoderSpec.model_validate_json(spec.model_dump_json()))
    assert model_digest(again) == model_digest(encoder)
    export(tmp_path / "again", graph, again)
    assert (tmp_path / "again" / "vectors.npy").read_bytes() == (tmp_path / "vectors.npy").read_bytes()


@pytest.mark.parametrize("spec", [EncoderSpec(hidden=9, dim=6), EncoderSpec(hidden=8, dim=6, layers=3)])
def test_an_encoder_of_another_spec_is_refused(tmp_path, spec):
    export(tmp_path, ring())
    with pytest.raises(InvalidInput, match="no encoder of this spec"):
        read_encoder(tmp_path / "encoder.safetensors", spec)


def test_a_damaged_encoder_is_noticed(tmp_path):
    export(tmp_path, ring())
    file = tmp_path / "encoder.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(InvalidInput, match="checksum"):
        read_embeddings(tmp_path)
    with pytest.raises(InvalidInput, match="no encoder"):
        read_encoder(file, EncoderSpec(hidden=8, dim=6))
