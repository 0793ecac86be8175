"""Graphs from tables come in two ways, in memory and through an import; both must say the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from trainer.data.graph import Graph
from trainer.data.importing.budget import Budget
from trainer.data.importing.graph import import_tables
from trainer.data.sources import tables
from trainer.errors import InvalidInput
from trainer.spec.data import FilesSpec

SMALL_BYTES = 20_000
FOR_SMALL = (Budget(block_bytes=24, sort_edges=3), Budget(block_bytes=200, sort_edges=17), Budget())
FOR_LARGE = (Budget(block_bytes=1 << 16, sort_edges=20_000),)


def assert_same(one: Graph, other: Graph) -> None:
    """Array by array, type by type, note by note."""
    for name in ("indptr", "indices", "weight", "y"):
        a, b = getattr(one, name), getattr(other, name)
        assert (a is None) == (b is None), name
        assert a is None or (a.dtype == b.dtype and torch.equal(a, b)), name
    assert one.x.layout == other.x.layout
    parts = [
        (g.x,) if g.x.layout == torch.strided else (g.x.crow_indices(), g.x.col_indices(), g.x.values())
        for g in (one, other)
    ]
    for a, b in zip(*parts, strict=True):
        assert a.dtype == b.dtype
        assert a.numpy().tobytes() == b.numpy().tobytes()  # signs of zeros too
    assert one.ids.dtype == other.ids.dtype
    assert one.ids.tolist() == other.ids.tolist()
    assert (one.classes, one.notes, one.num_features) == (other.classes, other.notes, other.num_features)
    assert one.fingerprint() == other.fingerprint()


def _loaded(spec: FilesSpec) -> tuple[Graph | None, InvalidInput]:
    try:
        return tables.load(spec), InvalidInput()
    except InvalidInput as refusal:
        return None, refusal


@pytest.fixture
def same_graph() -> Callable[[Graph, Graph], None]:
    return assert_same


@pytest.fixture
def load_both(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Graph]:
    """`tables.load` that also imports, with several sizes of blocks and buckets, and compares; or both must refuse."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # durability is not what is compared, and it is slow

    def load(spec: FilesSpec) -> Graph:
        sizes = [Path(path).stat().st_size for path in (spec.nodes, spec.edges) if path and Path(path).exists()]
        budgets = FOR_SMALL if max(sizes) < SMALL_BYTES else FOR_LARGE
        shelf = tmp_path_factory.mktemp("imported")
        expected, refusal = _loaded(spec)
        if expected is None:
            for budget in budgets:
                with pytest.raises(InvalidInput) as failure:
                    import_tables(spec, shelf / "graph", budget=budget)
                assert str(failure.value) == str(refusal)
                assert list(shelf.iterdir()) == []
            raise refusal
        for number, budget in enumerate(budgets):
            import_tables(spec, shelf / str(number), budget=budget)
            assert_same(Graph.open(shelf / str(number)), expected)
            again = Graph.open(shelf / str(number))
            object.__setattr__(again, "_stored_fingerprint", None)
            assert again.fingerprint() == expected.fingerprint()  # what is stored is also true
        return expected

    return load
