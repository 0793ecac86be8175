"""Exact search against a brute force in float64 that holds every score at once."""

from __future__ import annotations

import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from service.embeddings import exact
from service.embeddings import publish as publishing
from service.embeddings.exact import nearest


def reference(vectors, queries, k, *, metric="cosine", among=None, exclude=None):
    """All scores in float64, rounded once, sorted by (-score, row): lists of (row, score) per query."""
    answer = []
    for number, query in enumerate(queries.astype(np.float64)):
        pairs = []
        for row in range(len(vectors)) if among is None else among:
            if exclude is not None and exclude[number] == row:
                continue
            x = vectors[row].astype(np.float64)
            score = np.dot(query, x)
            if metric == "cosine":
                norms = np.linalg.norm(query) * np.linalg.norm(x)
                score = score / norms if norms else 0.0
            pairs.append((-np.float32(score), int(row)))
        answer.append([(row, -negative) for negative, row in sorted(pairs)[:k]])
    return answer


def inverse_norms(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    return np.where(norms > 0, 1 / np.where(norms > 0, norms, 1), 0).astype(np.float32)


def assert_same(vectors, queries, k, **options) -> None:
    rows, scores = nearest(vectors, inverse_norms(vectors), queries, k, **options)
    expected = reference(vectors, queries, k, **options)
    assert rows.shape == scores.shape == (len(queries), max(map(len, expected), default=0))
    for line, values, wanted in zip(rows, scores, expected, strict=True):
        assert line[: len(wanted)].tolist() == [row for row, _ in wanted]
        np.testing.assert_allclose(values[: len(wanted)], [score for _, score in wanted], rtol=2e-7, atol=1e-12)
        assert (line[len(wanted) :] == -1).all()
        assert np.isnan(values[len(wanted) :]).all()


def normal(rows: int, dim: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, dim), dtype=np.float32)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks, groups and pieces so small that a table of a few hundred rows takes many of each."""
    monkeypatch.setattr(exact, "PRODUCTS", 4096 * 3)
    monkeypatch.setattr(exact, "GATHERED", 200)
    monkeypatch.setattr(exact, "RESCORED", 300)
    monkeypatch.setattr(exact, "CACHED", 40)
    monkeypatch.setattr(exact, "CANDIDATES", 100)
    monkeypatch.setattr(exact, "SAMPLE", 8)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("rows, dim, queries, k", [
    (1, 1, 1, 1), (2, 3, 1, 5), (97, 5, 3, 10), (301, 7, 13, 1), (400, 16, 4, 40), (53, 4, 29, 100), (300, 33, 2, 299),
])  # fmt: skip
def test_equals_brute_force_on_ragged_sizes(rows, dim, queries, k, metric):
    assert_same(normal(rows, dim), normal(queries, dim, 1), k, metric=metric)


@pytest.mark.parametrize("queries", [1, 2, 3, 4, 20])
def test_equals_brute_force_with_the_usual_blocks(queries):
    assert_same(normal(300, 24), normal(queries, 24, 1), 12)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_only_rows_of_the_filter_and_never_the_excluded_one(metric):
    vectors = normal(200, 6)
    random = np.random.default_rng(3)
    for count in (0, 1, 5, 120, 200):
        among = np.sort(random.choice(200, count, replace=False))
        exclude = random.integers(-1, 200, 9)
        assert_same(vectors, vectors[:9], 7, metric=metric, among=among, exclude=exclude)
    assert_same(vectors, vectors[:9], 7, metric=metric, exclude=np.arange(9))


def test_a_query_with_fewer_rows_than_the_others_is_filled_up():
    vectors = normal(5, 3)
    rows, scores = nearest(vectors, inverse_norms(vectors), vectors[:2], 10, exclude=np.array([0, -1]))
    assert rows.shape == (2, 5)
    assert rows[0, 4] == -1
    assert np.isnan(scores[0, 4])
    assert sorted(rows[1]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_zero_vectors_score_nothing(metric):
    vectors = normal(60, 5)
    vectors[[0, 7, 8, 59]] = 0
    assert_same(vectors, normal(6, 5, 2), 60, metric=metric)


def test_a_zero_query_by_dot_ties_with_everything():
    vectors = normal(5000, 4)
    rows, scores = nearest(vectors, inverse_norms(vectors), np.zeros((2, 4), np.float32), 7, metric="dot")
    assert rows.tolist() == [list(range(7))] * 2
    assert (scores == 0).all()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("queries", [1, 6])
def test_equal_vectors_come_in_the_order_of_their_rows(metric, queries):
    few = normal(4, 19)
    vectors = few[np.random.default_rng(1).integers(0, 4, 400)]
    assert_same(vectors, normal(queries, 19, 5), 30, metric=metric)
    assert_same(vectors, few[:queries], 3, metric=metric, exclude=np.arange(len(few[:queries])))


@pytest.mark.parametrize("queries", [1, 5])
def test_more_equal_vectors_than_are_ever_kept_give_the_first_rows(queries):
    vectors = np.repeat(normal(1, 37), 30_011, axis=0)  # of which BLAS scores some a last bit higher than others
    vectors[20_000] = normal(1, 37, 9)
    rows, _ = nearest(vectors, inverse_norms(vectors), np.repeat(vectors[:1], queries, axis=0), 50)
    assert rows.tolist() == [list(range(50))] * queries


def nearly_equal(rows: int, dim: int, spread: float) -> NDArray[np.float32]:
    """Vectors as of an encoder that has collapsed: most differ by less than float32 products can tell."""
    return (normal(1, dim, 7).astype(np.float64) + spread * normal(rows, dim)).astype(np.float32)


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize("spread", [1e-3, 1e-4, 1e-6])
@pytest.mark.parametrize("queries", [1, 5])
def test_vectors_that_differ_by_less_than_float32_can_tell_come_in_their_true_order(metric, spread, queries):
    vectors = nearly_equal(12_000, 16, spread)
    assert_same(vectors, vectors[:queries], 10, metric=metric)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_nearly_equal_vectors_in_small_blocks_with_filter_and_exclusion(metric):
    vectors = nearly_equal(900, 8, 1e-5)
    vectors[100:500] = vectors[3]
    among = np.sort(np.random.default_rng(0).choice(900, 700, replace=False))
    exclude = np.array([among[0], -1, 3, among[600], 899])
    assert_same(vectors, vectors[[0, 1, 3, 300, 899]], 12, metric=metric, among=among, exclude=exclude)


@pytest.mark.parametrize("queries", [1, 4])
def test_a_long_vector_across_the_query_is_not_lost_by_dot(queries):
    """Its float32 product is off by far more than the whole products of the others."""
    random = np.random.default_rng(0)
    for attempt in range(12):
        vectors = normal(3000, 64, attempt) * np.float32(1e-3)
        asked = normal(queries, 64, 100 + attempt)
        query = asked[0].astype(np.float64)
        long = 3e5 * random.standard_normal(64)
        long = (long - (long @ query) / (query @ query) * query).astype(np.float32)
        vectors[777] = long if long.astype(np.float64) @ query > 0 else -long
        assert_same(vectors, asked, 10, metric="dot")
        vectors[1000:1050] = vectors[777] * random.uniform(-1, 1, (50, 1))  # more than there are places to spare
        assert_same(vectors, asked, 10, metric="dot")


def test_vectors_too_short_for_float32_score_nothing():
    vectors = normal(3000, 12)
    vectors[::3] *= np.float32(1e-36)
    norms = publishing.inverse_norms(vectors)
    rows, scores = nearest(vectors, norms, vectors[1:3], 3000)
    vectors[::3] = 0
    for line, values, wanted in zip(rows, scores, reference(vectors, vectors[1:3], 3000), strict=True):
        assert line.tolist() == [row for row, _ in wanted]
        np.testing.assert_allclose(values, [score for _, score in wanted], rtol=2e-7)


@pytest.mark.filterwarnings("error")
def test_dot_products_beyond_float32_are_the_largest_number_and_tie():
    vectors = normal(5000, 8) * np.float32(1e17)
    queries = np.concatenate([normal(3, 8, 1) * np.float32(1e30), normal(3, 8, 2) * np.float32(1e-44)])
    rows, scores = nearest(vectors, inverse_norms(vectors), queries, 40, metric="dot")
    products = vectors.astype(np.float64) @ queries.astype(np.float64).T
    largest = np.finfo(np.float32).max
    for line, values, true in zip(rows[:3], scores[:3], products.T, strict=False):
        assert line.tolist() == np.flatnonzero(true > largest)[:40].tolist()
        assert (values == largest).all()
    assert_same(vectors, queries[3:], 40, metric="dot")
    rows, scores = nearest(abs(vectors), inverse_norms(vectors), -abs(queries[:2]), 40, metric="dot")
    assert rows.tolist() == [list(range(40))] * 2
    assert (scores == -largest).all()


def test_a_zero_query_leaves_out_what_it_must():
    vectors = normal(5000, 4)
    queries, exclude = np.zeros((3, 4), np.float32), np.array([2, -1, 4000])
    rows, _ = nearest(vectors, inverse_norms(vectors), queries, 4, metric="dot", exclude=exclude)
    assert rows.tolist() == [[0, 1, 3, 4], [0, 1, 2, 3], [0, 1, 2, 3]]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("falling", [False, True])
def test_a_table_in_the_order_of_its_scores(falling):
    vectors = np.stack([np.linspace(-1, 1, 997), np.ones(997)], axis=1).astype(np.float32)
    vectors = np.ascontiguousarray(vectors[::-1] if falling else vectors)
    assert_same(vectors, np.array([[1, 0], [0, 1], [-1, 0.5], [1, 1]], np.float32), 9)
    assert_same(vectors, np.array([[1, 0.1]], np.float32), 9)


def test_huge_and_tiny_numbers_neither_overflow_nor_vanish():
    vectors = normal(50, 4) * np.float32(1e18)
    queries = normal(5, 4, 1) * np.array([[1e38], [1e-38], [1], [3e37], [1e-20]], np.float32)
    assert_same(vectors, queries, 5)
    rows, scores = nearest(vectors, inverse_norms(vectors), queries, 5, metric="dot")
    assert np.isfinite(scores).all()
    assert (rows >= 0).all()


def test_the_answer_does_not_depend_on_the_company_of_a_query():
    queries = normal(40, 48, 1)
    for vectors in (normal(3000, 48), nearly_equal(3000, 48, 1e-4)):
        norms = inverse_norms(vectors)
        rows, scores = nearest(vectors, norms, queries, 10)
        for number in range(40):
            alone = nearest(vectors, norms, queries[number : number + 1], 10)
            assert (alone[0][0] == rows[number]).all()
            assert (alone[1][0] == scores[number]).all()


def peak_bytes(*arguments, **options) -> int:
    tracemalloc.start()
    nearest(*arguments, **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_a_mapped_table_is_not_copied(tmp_path: Path):
    np.save(tmp_path / "x.npy", normal(20_000, 256))
    vectors = np.load(tmp_path / "x.npy", mmap_mode="r")  # 20 MB
    norms = inverse_norms(vectors)
    nearest(vectors[:10], norms[:10], vectors[:1], 1)  # loads what is loaded once
    for queries in (1, 3, 30):
        assert peak_bytes(vectors, norms, vectors[:queries], 10) < 10 << 20


def test_memory_stays_bounded_for_many_queries_and_large_k():
    vectors = normal(9000, 8)
    queries = normal(600, 8, 1)  # more than one group
    answer = 600 * 1000 * 12
    assert peak_bytes(vectors, inverse_norms(vectors), queries, 1000) < answer + (150 << 20)


def test_memory_stays_bounded_where_all_rows_are_in_doubt():
    vectors = nearly_equal(60_000, 4, 1e-6)
    for queries in (1, 100):
        assert peak_bytes(vectors, inverse_norms(vectors), vectors[:queries], 10) < 100 << 20


def test_threads_search_at_once_and_get_their_own_answers():
    vectors = normal(2000, 32)
    norms = inverse_norms(vectors)
    queries = [normal(1 + number % 5, 32, number) for number in range(24)]
    alone = [nearest(vectors, norms, some, 10)[0] for some in queries]
    gate = threading.Barrier(4)

    def work(number: int) -> bool:
        if number < 4:
            gate.wait(30)
        return bool((nearest(vectors, norms, queries[number], 10)[0] == alone[number]).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(24)))
