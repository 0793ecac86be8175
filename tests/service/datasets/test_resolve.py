"""Which graph a spec means: versions are settled, sizes come with it, and what cannot be used is said by field."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from service.datasets.resolve import resolve
from service.settings import Settings
from service.store import Store
from service.store.records import NewJob
from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.data.sources.public import SETS
from trainer.errors import InvalidInput
from trainer.planning.shape import shape_of
from trainer.spec.data import DataSpec

GRAPH = Graph.from_edges([[0, 1, 2], [1, 2, 3]], np.eye(4), y=[0, 1, 2, 0])


def add(store: Store, settings: Settings, name: str, version: str, state: str = "ready") -> str:
    """An uploaded version in that state, with its graph if it is ready."""
    ref = f"{name}.{version}"
    job = NewJob("import", {"upload": "0" * 32}, spec_hash="h", dataset=ref)
    dataset, _ = store.datasets.create(name, version, options={}, size=1, job=job)
    if state == "ready":
        GRAPH.save(settings.graphs / ref)
        store.datasets.finish(ref, dataset.job_id, about={"nodes": 4})
    elif state == "failed":
        store.datasets.finish(ref, dataset.job_id, failure="nodes.csv, row 3:\nno number")
    return ref


def imported(name: str, **changes) -> DataSpec:
    return DataSpec(name="imported", imported=name, **changes)


def test_a_bare_name_means_the_newest_version_that_is_ready(settings: Settings, store: Store):
    first = add(store, settings, "papers", "aaaaaaaaaaaa")
    assert resolve(imported("papers"), store, settings).ref == first
    second = add(store, settings, "papers", "bbbbbbbbbbbb")
    add(store, settings, "papers", "cccccccccccc", "checking")
    add(store, settings, "papers", "dddddddddddd", "failed")
    found = resolve(imported("papers", features="rownorm", held_out_edges=0.25), store, settings)
    assert (found.ref, found.data.imported) == (second, second)
    assert (found.data.features, found.data.held_out_edges) == ("rownorm", 0.25)
    assert resolve(imported(first), store, settings).data.imported == first


def test_the_shape_is_that_of_the_graph(settings: Settings, store: Store):
    ref = add(store, settings, "papers", "aaaaaaaaaaaa")
    found = resolve(imported(ref), store, settings)
    expected = shape_of(load(imported(ref), home=settings.home))
    assert (found.shape.nodes, found.shape.edges, found.shape.nonzeros) == (4, 6, expected.nonzeros)
    assert found.classes == expected.classes == 3


def test_a_graph_imported_on_the_command_line_comes_before_uploads_of_its_name(settings: Settings, store: Store):
    add(store, settings, "papers", "aaaaaaaaaaaa")
    GRAPH.save(settings.graphs / "papers")
    assert resolve(imported("papers"), store, settings).ref == "papers"
    GRAPH.save(settings.graphs / "with.dots-1.0")
    assert resolve(imported("with.dots-1.0"), store, settings).ref == "with.dots-1.0"


@pytest.mark.parametrize("name, classes", [("digits", 10), ("cora", SETS["cora"].classes), ("synthetic", 5)])
def test_sets_that_are_always_there_need_no_files(settings: Settings, store: Store, monkeypatch, name, classes):
    monkeypatch.delenv("NML_DATA", raising=False)
    data = DataSpec(name=name)
    found = resolve(data, store, settings)
    assert (found.data, found.ref, found.classes) == (data, name, classes)


@pytest.mark.parametrize(
    "name, says",
    [
        ("nobody", "no data set of this name has been uploaded or imported; there are papers, by-hand"),
        ("papers.eeeeeeeeeeee", "no data set of this name"),
        ("late", "late.cccccccccccc is still being checked"),
        ("late.cccccccccccc", "is still being checked"),
        ("bad", "bad.dddddddddddd, its newest version, was refused and cannot be used: nodes.csv, row 3: no number"),
        ("bad.dddddddddddd", "bad.dddddddddddd was refused"),
        ("gone", "damaged or gone"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line_for_its_field(settings: Settings, store: Store, name, says):
    add(store, settings, "papers", "aaaaaaaaaaaa")
    GRAPH.save(settings.graphs / "by-hand")
    add(store, settings, "late", "cccccccccccc", "checking")
    add(store, settings, "bad", "dddddddddddd", "failed")
    if name == "gone":
        shutil.rmtree(settings.graphs / add(store, settings, "gone", "ffffffffffff"))
    with pytest.raises(InvalidInput) as refused:
        resolve(imported(name), store, settings)
    message = str(refused.value)
    assert message.startswith("data.imported: ")
    assert says in message
    assert "\n" not in message
    assert str(settings.home) not in message


def test_files_of_the_machine_cannot_be_named(settings: Settings, store: Store):
    with pytest.raises(InvalidInput, match=r"^data\.files: "):
        resolve(DataSpec(name="files", files={"npz": "/etc/passwd"}), store, settings)
