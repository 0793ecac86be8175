"""One call, several backends: the right one is chosen, and each gives exact scores and full answers."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from service.embeddings import approximate
from service.embeddings.approximate import build_index
from service.embeddings.search import Searcher
from service.embeddings.table import Table
from tests.service.embeddings.tables import make_table
from trainer.errors import InvalidInput

ROWS, DIM = 1200, 16


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    made = make_table(tmp_path_factory.mktemp("home"), ROWS, DIM)
    for kind in ("hnsw", "ivf"):
        build_index(made, kind, threads=1)
    return made


@pytest.fixture
def searcher(table: Table) -> Searcher:
    return Searcher(table, use_index_from=0)


def cosines(table: Table, query) -> np.ndarray:
    x = np.array(table.vectors, np.float64)
    return (x @ query.astype(np.float64)) / np.linalg.norm(x, axis=1) / np.linalg.norm(query.astype(np.float64))


@pytest.mark.parametrize("backend", ["exact", "hnsw", "ivf"])
def test_every_backend_gives_exact_scores_in_order(table, searcher, backend):
    queries = np.random.default_rng(5).standard_normal((20, DIM), dtype=np.float32)
    found = searcher.search(queries, 10, backend=backend)
    assert found.backend == backend
    assert found.rows.dtype == np.int64
    assert found.scores.dtype == np.float32
    agreeing = 0
    for query, rows, scores in zip(queries, found.rows, found.scores, strict=True):
        truth = cosines(table, query)
        np.testing.assert_allclose(scores, truth[rows], rtol=0, atol=1e-7)
        assert (np.diff(scores) <= 0).all()
        assert len(set(rows.tolist())) == 10
        agreeing += len(set(np.argsort(-truth)[:10].tolist()) & set(rows.tolist()))
    assert agreeing == 200 if backend == "exact" else agreeing >= 180


@pytest.mark.parametrize("backend", ["exact", "hnsw", "ivf"])
@pytest.mark.parametrize("k", [1, 10, 1000, ROWS - 1, ROWS, ROWS + 5])
def test_every_backend_gives_as_many_rows_as_there_are(table, searcher, backend, k):
    exclude = np.array([3, -1, 5])
    found = searcher.search(table.vectors[[3, 4, 5]], k, backend=backend, exclude=exclude)
    assert found.rows.shape == (3, min(k, ROWS))
    for rows, scores, left_out in zip(found.rows, found.scores, exclude, strict=True):
        real = rows[rows >= 0]
        assert len(real) == len(set(real.tolist())) == min(k, ROWS - (left_out >= 0))
        assert left_out not in real.tolist()
        assert np.isnan(scores[rows < 0]).all()
        assert not np.isnan(scores[rows >= 0]).any()


def test_all_queries_excluding_a_row_have_no_empty_column(table, searcher):
    for backend in ("exact", "hnsw", "ivf"):
        found = searcher.search(table.vectors[:4], ROWS, backend=backend, exclude=np.arange(4))
        assert found.rows.shape == (4, ROWS - 1)
        assert (found.rows >= 0).all()


def test_auto_takes_the_index_only_where_it_may(table):
    large, small = Searcher(table, use_index_from=ROWS), Searcher(table, use_index_from=ROWS + 1)
    query = table.vectors[:1]
    assert large.search(query, 3).backend == "hnsw"
    assert small.search(query, 3).backend == "exact"
    assert large.search(query, 3, metric="dot").backend == "exact"
    assert large.search(query, 3, among=np.arange(9)).backend == "exact"
    assert large.search(query, 3, backend="exact").backend == "exact"


def test_an_index_is_used_from_when_it_is_built_on(tmp_path: Path):
    table = make_table(tmp_path, 200, 4)
    searcher = Searcher(table, use_index_from=0)
    assert searcher.search(table.vectors[:1], 3).backend == "exact"
    with pytest.raises(InvalidInput, match="no ivf index"):
        searcher.search(table.vectors[:1], 3, backend="ivf")
    build_index(table, "ivf", threads=1)
    assert searcher.search(table.vectors[:1], 3).backend == "ivf"
    build_index(table, "hnsw", threads=1)
    assert searcher.search(table.vectors[:1], 3).backend == "hnsw"


def test_a_damaged_index_is_passed_over_until_it_is_built_again(tmp_path: Path):
    table = make_table(tmp_path, 200, 4)
    build_index(table, "hnsw", threads=1)
    os.truncate(table.directory / "index.hnsw.faiss", 100)
    searcher = Searcher(table, use_index_from=0)
    for _ in range(2):
        assert searcher.search(table.vectors[:1], 3).backend == "exact"
        with pytest.raises(InvalidInput, match="bytes instead of"):
            searcher.search(table.vectors[:1], 3, backend="hnsw")
    build_index(table, "hnsw", threads=1)
    assert searcher.search(table.vectors[:1], 3).backend == "hnsw"


def test_auto_passes_over_an_index_that_misses_too_much(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(approximate.EFFORTS, "ivf", (1,))
    table = make_table(tmp_path, 2000, 24)
    assert build_index(table, "ivf", threads=1)["recall_at_10"] < 0.95
    searcher = Searcher(table, use_index_from=0)
    assert searcher.search(table.vectors[:1], 3).backend == "exact"
    assert searcher.search(table.vectors[:1], 3, backend="ivf").backend == "ivf"


def test_auto_passes_over_an_index_whose_recall_nobody_could_measure(tmp_path: Path):
    table = make_table(tmp_path, vectors=np.zeros((50, 4), np.float32))
    assert build_index(table, "hnsw", threads=1)["sample"] == 0
    assert Searcher(table, use_index_from=0).search(np.ones((1, 4), np.float32), 3).backend == "exact"


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_what_an_index_cannot_find_is_searched_exactly(tmp_path: Path, kind):
    """Equal vectors crowd a graph and leave lists empty: large k reaches beyond what the index finds."""
    random = np.random.default_rng(0)
    vectors = np.repeat(random.standard_normal((6, 12), dtype=np.float32), 300, axis=0)
    table = make_table(tmp_path, vectors=vectors)
    build_index(table, kind, threads=1)
    searcher = Searcher(table, use_index_from=0)
    exact = searcher.search(vectors[::300], 1000, backend="exact")
    found = searcher.search(vectors[::300], 1000, backend=kind)
    assert (found.rows >= 0).all()
    assert exact.rows.shape == found.rows.shape == (6, 1000)


@pytest.mark.parametrize("queries, k, options, message", [
    (np.ones((2, DIM + 1)), 3, {}, "shape"),
    (np.ones(DIM), 3, {}, "shape"),
    (np.ones((1, DIM)), 0, {}, "k is 0"),
    (np.zeros((1, DIM)), 3, {}, "query 0 is a zero vector"),
    (np.full((1, DIM), np.nan), 3, {}, "query 0 holds NaN or infinity"),
    (np.full((1, DIM), np.inf), 3, {"metric": "dot"}, "NaN or infinity"),
    (np.ones((1, DIM)), 3, {"metric": "dot", "backend": "hnsw"}, "cosine only"),
    (np.ones((1, DIM)), 3, {"among": np.arange(3), "backend": "ivf"}, "filter"),
    (np.ones((1, DIM)), 3, {"metric": "l2"}, "invalid metric"),
    (np.ones((1, DIM)), 3, {"backend": "magic"}, "invalid backend"),
])  # fmt: skip
def test_what_cannot_be_searched_is_said(searcher, queries, k, options, message):
    with pytest.raises(InvalidInput, match=message):
        searcher.search(queries.astype(np.float32), k, **options)


@pytest.mark.parametrize("backend", ["exact", "hnsw", "ivf"])
def test_no_query_is_no_answer(searcher, backend):
    assert searcher.search(np.empty((0, DIM), np.float32), 3, backend=backend).rows.shape[0] == 0


def test_threads_share_a_searcher(table):
    searcher = Searcher(table, use_index_from=0)
    backends = ["auto", "exact", "ivf", "hnsw"] * 10
    alone = {
        name: Searcher(table, use_index_from=0).search(table.vectors[:7], 10, backend=name).rows for name in backends
    }
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda name: searcher.search(table.vectors[:7], 10, backend=name).rows, backends))
    assert all((rows == alone[name]).all() for name, rows in zip(backends, found, strict=True))


def test_a_closed_searcher_opens_its_index_anew(table, searcher):
    before = searcher.search(table.vectors[:2], 5, backend="hnsw")
    searcher.close()
    assert (searcher.search(table.vectors[:2], 5, backend="hnsw").rows == before.rows).all()
