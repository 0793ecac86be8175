"""Public sets: the real files where there are any, and clear sentences where there are none."""

from __future__ import annotations

import io
import json
import os
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.data.datasets import catalog, load
from trainer.data.graph import Graph
from trainer.data.sources import public
from trainer.errors import Infrastructure, InvalidInput
from trainer.spec.data import DataSpec

NML_DATA = os.environ.get("NML_DATA")


def need(name: str) -> pytest.MarkDecorator:
    known = public.SETS[name]
    files = [Path(NML_DATA or "$NML_DATA", known.folder, "raw", file) for file in known.files]
    missing = [file for file in files if not file.is_file()]
    return pytest.mark.skipif(bool(missing), reason=f"{name}: {missing[0] if missing else ''} is missing")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args, **_options):
        raise urllib.error.URLError("no network in this test")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


@pytest.fixture
def no_data(offline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NML_DATA", raising=False)


# CS and Physics take 15 s each to convert, so they are left to `make test-slow`.
@pytest.mark.parametrize(
    "name, density, isolated",
    [
        pytest.param("cora", 0.0127, 0, marks=need("cora")),
        pytest.param("citeseer", 0.0085, 48, marks=need("citeseer")),
        pytest.param("pubmed", 0.1, 0, marks=need("pubmed")),
        pytest.param("photo", 0.347, 115, marks=need("photo")),
        pytest.param("computers", 0.348, 281, marks=need("computers")),
        pytest.param("wikics", 1.0, 0, marks=need("wikics")),
        pytest.param("cs", 0.0088, 0, marks=[need("cs"), pytest.mark.slow]),
        pytest.param("physics", 0.0039, 0, marks=[need("physics"), pytest.mark.slow]),
    ],
)
def test_real_sets_load_offline_and_again_from_the_cache(tmp_path: Path, offline, name, density, isolated):
    known = public.SETS[name]
    graph = load(DataSpec(name=name), home=tmp_path)  # a count that is wrong is refused
    assert (graph.num_nodes, graph.num_edges) == (known.nodes, known.edges)
    dense = graph.x.to_dense()
    assert torch.count_nonzero(dense) / dense.numel() == pytest.approx(density, rel=0.02)
    assert (graph.x.layout == torch.sparse_csr) == (density <= 0.25)
    assert int((graph.indptr.diff() == 0).sum()) == isolated
    assert [path.name for path in (tmp_path / "datasets").iterdir()] == []  # no scratch is left behind
    assert next(info.offline for info in catalog(home=tmp_path) if info.name == name)
    again = load(DataSpec(name=name), home=tmp_path)
    assert again.fingerprint() == graph.fingerprint()
    assert torch.equal(again.y, graph.y)


@need("cora")
def test_cora_has_the_public_split(tmp_path: Path):
    split = load(DataSpec(name="cora"), home=tmp_path).split
    assert {key: len(part) for key, part in split.items()} == {"train": 140, "val": 500, "test": 1000}
    assert split["train"].tolist() == list(range(140))
    assert split["test"].tolist() == list(range(1708, 2708))


@need("cora")
def test_a_damaged_cache_is_made_anew(tmp_path: Path, offline):
    first = load(DataSpec(name="cora"), home=tmp_path).fingerprint()
    (public.cache_path("cora", tmp_path) / "x_values.npy").unlink()
    assert load(DataSpec(name="cora"), home=tmp_path).fingerprint() == first


@need("cora")
def test_the_slower_of_two_processes_uses_the_others_graph(tmp_path: Path, monkeypatch):
    def beaten(self: Graph, directory: Path) -> None:
        save(self, directory)
        raise FileExistsError(directory)

    save = Graph.save
    monkeypatch.setattr(Graph, "save", beaten)
    assert load(DataSpec(name="cora"), home=tmp_path).num_nodes == 2708


@pytest.mark.parametrize("name", list(public.SETS))
def test_without_files_or_network_the_error_says_what_where_and_how(tmp_path: Path, no_data, name):
    with pytest.raises(Infrastructure) as failure:
        load(DataSpec(name=name), home=tmp_path)
    message, known = str(failure.value), public.SETS[name]
    assert str(tmp_path / "datasets" / known.folder / "raw") in message
    assert known.files[0] in message
    assert "no network in this test" in message
    assert "NML_DATA" in message
    assert "data.name=digits" in message
    assert not next(info.offline for info in catalog(home=tmp_path) if info.name == name)


def test_files_that_are_not_the_published_pickles_are_never_unpickled(tmp_path: Path, monkeypatch):
    raw = tmp_path / "data" / "Cora" / "raw"
    raw.mkdir(parents=True)
    for file in public.SETS["cora"].files:
        (raw / file).write_bytes(b"cos\nsystem\n(S'touch " + str(tmp_path / "ran").encode() + b"'\ntR.")
    monkeypatch.setenv("NML_DATA", str(tmp_path / "data"))
    with pytest.raises(InvalidInput, match="not those of Cora as published"):
        load(DataSpec(name="cora"), home=tmp_path / "home")
    assert not (tmp_path / "ran").exists()


def _photo(raw: Path, nodes: int) -> None:
    raw.mkdir(parents=True)
    parts = {"data": np.ones(1), "indices": np.array([1]), "indptr": np.r_[0, np.ones(nodes, int)]}
    arrays = {f"{prefix}_{key}": value for prefix in ("adj", "attr") for key, value in parts.items()}
    labels = np.arange(nodes) % 2
    np.savez(
        raw / "amazon_electronics_photo.npz", **arrays, adj_shape=[nodes] * 2, attr_shape=[nodes, 3], labels=labels
    )


def test_an_incomplete_set_is_refused_with_what_is_missing(tmp_path: Path, monkeypatch):
    _photo(tmp_path / "data" / "Photo" / "raw", 5)
    monkeypatch.setenv("NML_DATA", str(tmp_path / "data"))
    with pytest.raises(InvalidInput, match="5 nodes instead of 7,650, 2 edges instead of 238,162"):
        load(DataSpec(name="photo"), home=tmp_path / "home")
    assert not (tmp_path / "home" / "cache").exists()
    assert [path.name for path in (tmp_path / "data" / "Photo").iterdir()] == ["raw"]  # NML_DATA is only read


def test_wikics_is_read_undirected_before_it_is_counted(tmp_path: Path, monkeypatch):
    raw = tmp_path / "data" / "WikiCS" / "raw"
    raw.mkdir(parents=True)
    masks = {key: [[True, False, False]] for key in ("train_masks", "val_masks", "stopping_masks")}
    content = {
        "features": [[1.0, 2.0]] * 3,
        "labels": [0, 1, 1],
        "links": [[1, 0], [0, 2], []],
        "test_mask": [True] * 3,
    }
    (raw / "data.json").write_text(json.dumps(content | masks))
    monkeypatch.setenv("NML_DATA", str(tmp_path / "data"))
    with pytest.raises(InvalidInput, match="3 nodes instead of 11,701, 4 edges instead of 431,206, 2 features"):
        load(DataSpec(name="wikics"), home=tmp_path / "home")


def test_a_truncated_file_is_refused(tmp_path: Path, monkeypatch):
    file = tmp_path / "data" / "Photo" / "raw" / "amazon_electronics_photo.npz"
    _photo(file.parent, 5)
    file.write_bytes(file.read_bytes()[:200])
    monkeypatch.setenv("NML_DATA", str(tmp_path / "data"))
    with pytest.raises(InvalidInput, match="PyG cannot read it"):
        load(DataSpec(name="photo"), home=tmp_path / "home")


def test_a_broken_download_leaves_nothing_behind(tmp_path: Path, no_data, monkeypatch):
    served: list[str] = []

    def one_file_then_nothing(url: str, timeout: float):
        served.append(url)
        if len(served) > 1:
            raise TimeoutError("timed out")
        return io.BytesIO(b"the first file")

    monkeypatch.setattr(urllib.request, "urlopen", one_file_then_nothing)
    with pytest.raises(Infrastructure, match="timed out"):
        load(DataSpec(name="cora"), home=tmp_path)
    assert list((tmp_path / "datasets" / "Cora").iterdir()) == []
    assert [url.rpartition("/")[2] for url in served] == ["ind.cora.x", "ind.cora.tx"]


@need("photo")
def test_a_download_serves_the_next_process(tmp_path: Path, no_data, monkeypatch):
    source = Path(NML_DATA or "", "Photo", "raw", "amazon_electronics_photo.npz")
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: io.BytesIO(source.read_bytes()))
    assert load(DataSpec(name="photo"), home=tmp_path).num_nodes == 7650
    assert public.find_raw(public.SETS["photo"], tmp_path) == tmp_path / "datasets" / "Photo" / "raw"


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path, no_data):
    (tmp_path / "home").write_text("a file, not a folder")
    with pytest.raises(Infrastructure, match="Set NML_HOME to a writable folder"):
        load(DataSpec(name="photo"), home=tmp_path / "home")
