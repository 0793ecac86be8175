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

from trainer.config import EncoderSpec
from trainer.errors import InvalidInput, NonFinite
from trainer.graph import Graph
from trainer.nn.encoder import Encoder
from trainer.nn.views import Propagation
from trainer.run.export import export_embeddings, read_embeddings
from trainer.run.layerwise import model_digest

NUMBERS = np.array([10, 7, 2**40, 3, -1])
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
    files = {name: hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in ("vectors.npy", "ids.npy")}
    assert manifest == {
        "rows": 5, "dim": 6, "dtype": "float32", "id_type": "int", "files": files, "epoch": 3, "dataset": "ring",
        "graph_sha256": graph.fingerprint(), "model_sha256": model_digest(make_encoder()),
    }  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == {"vectors.npy", "ids.npy", "manifest.json"}


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
    assert {path.name for path in (tmp_path / "whole").iterdir()} == {"vectors.npy", "ids.npy", "manifest.json"}
    assert {path.name for path in tmp_path.iterdir()} == {"vectors.npy", "ids.npy", "manifest.json", "whole"}
