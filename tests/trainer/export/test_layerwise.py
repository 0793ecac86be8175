"""Layer-wise export is the encoder on the whole graph, whatever the buffer, and whatever kills it on the way."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.data.graph import Graph
from trainer.errors import InvalidInput, NonFinite
from trainer.export.layerwise import embed_layerwise, model_digest
from trainer.export.scratch import scratch_folder
from trainer.nn.encoder import Encoder
from trainer.nn.views import Propagation
from trainer.spec.encoder import EncoderSpec


def ragged_graph(n: int, features: int, *, sparse: bool = False, weighted: bool = False) -> Graph:
    """Node 7 receives from everyone, the last three from nobody, the rest from about four."""
    draws = np.random.default_rng(n)
    ends = np.concatenate([draws.integers(0, n - 3, (2, 4 * n)), [np.arange(n - 3), np.full(n - 3, 7)]], axis=1)
    x = draws.standard_normal((n, features))
    if sparse:
        x *= draws.random((n, features)) < 0.15
    weight = draws.random(ends.shape[1]) + 0.1 if weighted else None
    graph = Graph.from_edges(ends, x, weight=weight, directed=True)
    assert (graph.x.layout == torch.sparse_csr) == sparse
    return graph


def make_encoder(features: int, hidden: int, dim: int, layers: int, activation="prelu", dtype=torch.float32) -> Encoder:
    draws = torch.Generator().manual_seed(3)
    spec = EncoderSpec(hidden=hidden, dim=dim, layers=layers, activation=activation)
    encoder = Encoder(features, spec, generator=draws)
    with torch.no_grad():
        for bias in encoder.biases:
            bias.uniform_(-1, 1, generator=draws)
    return encoder.to(dtype)


def dense_reference(encoder: Encoder, graph: Graph) -> np.ndarray:
    """The formula in float64 on full matrices."""
    matrix = np.eye(graph.num_nodes)
    source, target = graph.edge_index.numpy()
    matrix[target, source] = 1 if graph.weight is None else graph.weight.numpy()
    root = 1 / np.sqrt(matrix.sum(1))
    matrix = root[:, None] * matrix * root
    hidden = graph.x.to_dense().double().numpy()
    slope = {"relu": 0.0, "prelu": 0.25, "rrelu_random": (1 / 8 + 1 / 3) / 2}[encoder.spec.activation]
    for layer, (weight, bias) in enumerate(zip(encoder.weights, encoder.biases, strict=True)):
        hidden = matrix @ hidden @ weight.detach().double().numpy() + bias.detach().double().numpy()
        if layer < len(encoder.weights) - 1:
            hidden = np.where(hidden > 0, hidden, slope * hidden)
    return hidden


def embed(encoder: Encoder, graph: Graph, target: Path, **options) -> np.ndarray:
    embed_layerwise(encoder, graph, target, model_digest=model_digest(encoder), **options)
    assert not scratch_folder(target).exists()
    vectors = np.load(target, allow_pickle=False)
    assert vectors.dtype == np.float32
    return vectors


def assert_same_float32(vectors: np.ndarray, reference: np.ndarray) -> None:
    """Equal to a float64 reference but for the one rounding to float32, and an error of 1e-10 before it."""
    below, above = (reference - 1e-10).astype(np.float32), (reference + 1e-10).astype(np.float32)
    assert ((below <= vectors) & (vectors <= above)).all()


@pytest.mark.parametrize("buffer_mb", [0, 256])  # 0: an edge and a row at a time
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("features, hidden, dim, layers", [
    (6, 0, 9, 1), (9, 0, 6, 1), (6, 9, 6, 2), (9, 6, 6, 2), (6, 6, 6, 2), (6, 9, 11, 3), (11, 9, 4, 3), (5, 9, 4, 3),
])  # fmt: skip
def test_float64_equals_the_formula_on_full_matrices(
    tmp_path, features, hidden, dim, layers, sparse, weighted, buffer_mb
):
    graph = ragged_graph(17, features, sparse=sparse, weighted=weighted)
    encoder = make_encoder(features, hidden or 1, dim, layers, dtype=torch.float64)
    vectors = embed(encoder, graph, tmp_path / "v.npy", buffer_mb=buffer_mb)
    assert_same_float32(vectors, dense_reference(encoder, graph))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("features, hidden, dim", [(40, 96, 24), (96, 40, 40)])
def test_float32_equals_the_encoder_with_hubs_and_tables_beyond_the_buffer(tmp_path, features, hidden, dim, sparse):
    graph = ragged_graph(3001, features, sparse=sparse, weighted=True)
    encoder = make_encoder(features, hidden, dim, 3)
    view = Propagation(graph.indptr, graph.indices, graph.weight).whole()
    expected = encoder.eval()(graph.x.to_dense(), view).detach().numpy()
    calls: list[tuple[int, int]] = []
    vectors = embed(encoder, graph, tmp_path / "v.npy", buffer_mb=1, progress=lambda *at: calls.append(at))
    assert len(calls) > 20
    assert np.allclose(vectors, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "rrelu_random"])
def test_the_encoder_works_in_eval_mode_and_keeps_its_own(tmp_path, activation):
    graph, encoder = ragged_graph(29, 6), make_encoder(6, 9, 4, 2, activation, torch.float64)
    encoder.train()
    assert_same_float32(embed(encoder, graph, tmp_path / "v.npy"), dense_reference(encoder, graph))
    assert encoder.training
    assert all(finish.training for finish in encoder.finishes)


@pytest.mark.parametrize("rows", [range(1), range(5, 12), range(14, 17), range(17)], ids=str)
@pytest.mark.parametrize("features, sparse", [(6, False), (11, False), (11, True)])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_some_rows_are_those_rows_of_the_whole(tmp_path, rows, features, sparse, layers):
    graph, encoder = (
        ragged_graph(17, features, sparse=sparse),
        make_encoder(features, 8, 7, layers, dtype=torch.float64),
    )
    expected = dense_reference(encoder, graph)[rows.start : rows.stop]
    for buffer_mb in (0, 256):
        assert_same_float32(embed(encoder, graph, tmp_path / "v.npy", rows=rows, buffer_mb=buffer_mb), expected)


def test_some_rows_compute_only_what_they_depend_on(tmp_path):
    ring = np.arange(1000)
    graph = Graph.from_edges([ring, (ring + 1) % 1000], np.random.default_rng(0).random((1000, 4)), directed=True)
    calls: list[tuple[int, int]] = []
    encoder = make_encoder(4, 4, 4, 3)
    embed(encoder, graph, tmp_path / "v.npy", rows=range(100, 110), progress=lambda *at: calls.append(at))
    assert calls[-1] == (10 + 11 + 12, 10 + 11 + 12)


@pytest.mark.parametrize("rows", [range(0), range(3, 3), range(30), range(-1, 3), range(0, 10, 2)], ids=str)
def test_rows_that_are_not_nodes_are_refused(tmp_path, rows):
    with pytest.raises(InvalidInput, match="29"):
        embed(make_encoder(4, 4, 4, 2), ragged_graph(29, 4), tmp_path / "v.npy", rows=rows)


def test_progress_rises_to_the_total_with_every_piece(tmp_path):
    calls: list[tuple[int, int]] = []
    graph, encoder = ragged_graph(29, 4), make_encoder(4, 4, 4, 2)
    embed(encoder, graph, tmp_path / "v.npy", buffer_mb=0, progress=lambda *at: calls.append(at))
    assert calls == [(done, 58) for done in range(59)]


def test_the_digest_names_weights_and_activation():
    encoders = [make_encoder(4, 4, 4, 2), make_encoder(4, 4, 4, 2, "relu"), make_encoder(4, 4, 4, 2, "elu"),
                make_encoder(4, 4, 4, 2, dtype=torch.float64), make_encoder(4, 4, 4, 2)]  # fmt: skip
    with torch.no_grad():
        encoders[-1].weights[1][2, 3] += 1e-6
    assert len({model_digest(encoder) for encoder in encoders}) == len(encoders)
    assert model_digest(encoders[0]) == model_digest(make_encoder(4, 4, 4, 2))


@pytest.mark.parametrize("buffer_mb", [0, 256])
def test_a_vector_that_is_not_finite_is_refused_by_the_nodes_own_id(tmp_path, buffer_mb):
    n = 29
    x = np.ones((n, 4), np.float32)
    x[-2:] = 3e38  # isolated, so only they overflow
    ids = np.array([f"paper-{node}" for node in range(n)])
    ends = ragged_graph(n, 4).edge_index.numpy()
    graph = Graph.from_edges(ends, x, ids=ids, directed=True)
    encoder = make_encoder(4, 4, 4, 2)
    with torch.no_grad():
        encoder.weights[0].fill_(1)
    with pytest.raises(NonFinite, match=r"'paper-27'"):
        embed(encoder, graph, tmp_path / "v.npy", buffer_mb=buffer_mb)
    assert not list(tmp_path.iterdir())


class Stop(Exception):
    pass


def interrupt(encoder: Encoder, graph: Graph, target: Path, at: int) -> None:
    def progress(done: int, total: int) -> None:
        if done >= at:
            raise Stop

    with pytest.raises(Stop):
        embed_layerwise(encoder, graph, target, model_digest=model_digest(encoder), buffer_mb=0, progress=progress)


def test_stopped_after_any_piece_it_goes_on_with_the_next(tmp_path):
    graph, encoder, target = ragged_graph(13, 6, weighted=True), make_encoder(6, 4, 5, 2), tmp_path / "v.npy"
    whole = embed(encoder, graph, tmp_path / "whole.npy", buffer_mb=0)
    for at in (0, 5, 13, 20, 26, 38, 39):  # within each of three sweeps, and between them
        interrupt(encoder, graph, target, at)
        assert not target.exists()
        calls: list[tuple[int, int]] = []
        vectors = embed(encoder, graph, target, buffer_mb=0, progress=lambda *now: calls.append(now))  # noqa: B023
        assert calls == [(done, 39) for done in range(at, 40)]
        assert vectors.tobytes() == whole.tobytes()
        target.unlink()


@pytest.mark.parametrize("other", ["model", "graph", "rows"])
def test_work_on_something_else_is_not_gone_on_with(tmp_path, other):
    graph, encoder, target, rows = ragged_graph(29, 6), make_encoder(6, 6, 6, 2), tmp_path / "v.npy", None
    interrupt(encoder, graph, target, 40)
    if other == "model":
        with torch.no_grad():
            encoder.weights[0][0, 0] += 1
    elif other == "graph":
        graph = ragged_graph(29, 6, weighted=True)
    else:
        rows = range(29)
    calls: list[tuple[int, int]] = []
    vectors = embed(encoder, graph, target, buffer_mb=0, rows=rows, progress=lambda *at: calls.append(at))
    assert calls[0][0] == 0
    assert vectors.tobytes() == embed(encoder, graph, tmp_path / "anew.npy", buffer_mb=0, rows=rows).tobytes()


def test_a_finished_target_with_its_record_is_not_computed_again(tmp_path):
    graph, encoder, target = ragged_graph(29, 6), make_encoder(6, 6, 6, 2), tmp_path / "v.npy"
    embed_layerwise(encoder, graph, target, model_digest=model_digest(encoder), keep_record=True)
    before = target.stat()
    assert sum(file.stat().st_size for file in scratch_folder(target).iterdir()) < 1000
    embed(encoder, graph, target, progress=lambda done, total: pytest.fail("computed again"))
    assert target.stat().st_mtime_ns == before.st_mtime_ns
    assert target.stat().st_ino == before.st_ino


CHILD = """
import json, os, sys, time
from pathlib import Path
from trainer.data.graph import Graph
from test_layerwise import make_encoder
from trainer.export.layerwise import embed_layerwise, model_digest

folder, log, features, hidden, dim, buffer_mb, share = sys.argv[1:]
graph = Graph.open(Path(folder) / "graph")
encoder = make_encoder(int(features), int(hidden), int(dim), 2)

def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))

def progress(done, total):
    with open(log, "a") as file:
        file.write(f"{done} {total}\\n")
    while done >= float(share) * total and os.getppid() == parent:  # until it is killed, or the tests are over
        time.sleep(0.05)

parent = os.getppid()
before = memory("VmRSS")
embed_layerwise(encoder, graph, Path(folder) / "v.npy", model_digest=model_digest(encoder), buffer_mb=int(buffer_mb),
                progress=progress)
print(json.dumps({"growth_mb": memory("VmHWM") - before}))
"""


NEVER = 2.0  # a share of the work that is not reached


def start(folder: Path, log: Path, *arguments: object) -> subprocess.Popen:
    """A process of its own that exports folder/graph to folder/v.npy, and comes to a halt at a share of the work."""
    command = [sys.executable, "-c", CHILD, str(folder), str(log), *map(str, arguments)]
    here = Path(__file__)
    environment = {"PYTHONPATH": f"{here.parents[3]}:{here.parent}", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def pieces_of(log: Path) -> list[tuple[int, int]]:
    """Complete lines only: the last may have been cut off by the kill."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [(int(done), int(total)) for done, total in (line.split() for line in lines)]


@pytest.mark.slow
def test_killed_again_and_again_it_goes_on_and_gives_the_same_bytes(tmp_path):
    graph = ragged_graph(4001, 60, weighted=True)
    graph.save(tmp_path / "graph")
    logs = [tmp_path / f"{name}.log" for name in ("first", "second", "third", "last")]
    arguments = (60, 40, 30, 1)  # features, hidden, dim, buffer
    encoder = make_encoder(60, 40, 30, 2)
    total = 4001 * 3
    for log, share in zip(logs[:-1], (0.1, 0.45, 0.9), strict=True):  # of the work: one kill in each sweep
        process = start(tmp_path, log, *arguments, share)
        deadline = time.monotonic() + 120
        while not any(done >= share * total for done, _ in pieces_of(log)):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline, "the export did not get that far"
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (tmp_path / "v.npy").exists()
    process = start(tmp_path, logs[-1], *arguments, NEVER)
    assert process.wait() == 0, process.stderr.read()

    calls: list[tuple[int, int]] = []
    embed(encoder, graph, tmp_path / "whole.npy", buffer_mb=1, progress=lambda *at: calls.append(at))
    assert (tmp_path / "v.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()
    histories = [pieces_of(log) for log in logs]
    for before, after in itertools.pairwise(histories):
        assert after[0][0] >= before[-1][0] > before[0][0]  # what was reported done was not done again
    computed = sum(len(history) - 1 for history in histories)
    assert len(calls) - 1 - len(logs) < computed <= len(calls) - 1  # a piece may be safe without having been reported


@pytest.mark.slow
@pytest.mark.parametrize("hidden, dim", [(256, 16), (64, 16)], ids=["features gathered", "features swept"])
def test_memory_stays_far_below_a_mapped_feature_table(tmp_path, hidden, dim):
    n, features = 300_000, 256
    draws = np.random.default_rng(0)
    x = draws.random((n, features), np.float32)
    Graph.from_edges(draws.integers(0, n, (2, 4 * n)), x, directed=True).save(tmp_path / "graph")
    assert x.nbytes > 290 << 20
    process = start(tmp_path, tmp_path / "log", features, hidden, dim, 32, NEVER)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert json.loads(output)["growth_mb"] < 100
