"""Loading by name, feature preparation and the catalogue."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler, normalize

from trainer.data.datasets import LOADERS, catalog, load
from trainer.data.features import rownorm, zscore
from trainer.errors import InvalidInput
from trainer.process.home import nml_home
from trainer.spec.data import DatasetName, DataSpec, FilesSpec, SyntheticSpec


def test_every_name_of_the_spec_has_a_loader_and_a_line(tmp_path: Path):
    names = set(get_args(DatasetName))
    assert set(LOADERS) == names
    assert {info.name for info in catalog(home=tmp_path)} == names - {"imported"}  # they have lines of their own


def test_imported_graphs_are_listed_and_loaded_by_their_names(tmp_path: Path):
    graph = load(DataSpec(name="synthetic", synthetic=SMALL))
    for name in ("b", "a.1"):
        graph.save(tmp_path / "graphs" / name)
    (tmp_path / "graphs" / ".b.0123456789ab").mkdir()  # an import that is not finished
    listed = [info for info in catalog(home=tmp_path) if info.kind == "imported"]
    assert [info.name for info in listed] == ["a.1", "b"]
    assert (listed[0].nodes, listed[0].edges, listed[0].classes) == (50, graph.num_edges, graph.num_classes)
    loaded = load(DataSpec(name="imported", imported="b"), home=tmp_path)
    assert loaded.fingerprint() == graph.fingerprint()
    prepared = load(DataSpec(name="imported", imported="b", features="rownorm"), home=tmp_path)
    torch.testing.assert_close(prepared.x.to_dense(), rownorm(graph.x).to_dense())


def test_an_unknown_import_is_refused_with_those_there_are(tmp_path: Path):
    spec = DataSpec(name="imported", imported="papers")
    with pytest.raises(
        InvalidInput, match=r'no imported graph is called "papers" .*there are none.*nml datasets import'
    ):
        load(spec, home=tmp_path)
    for name in ("a", "b"):
        load(DataSpec(name="synthetic", synthetic=SMALL)).save(tmp_path / "graphs" / name)
    with pytest.raises(InvalidInput, match="there are a, b"):
        load(spec, home=tmp_path)


def test_a_damaged_import_is_listed_as_not_ready(tmp_path: Path):
    (tmp_path / "graphs" / "broken").mkdir(parents=True)
    (tmp_path / "graphs" / "broken" / "manifest.json").write_text("{")
    info = catalog(home=tmp_path)[-1]
    assert (info.name, info.nodes, info.offline) == ("broken", None, False)
    with pytest.raises(InvalidInput, match="not a saved graph"):
        load(DataSpec(name="imported", imported="broken"), home=tmp_path)


def test_catalogue_tells_the_truth_about_digits():
    graph = load(DataSpec(name="digits"))
    info = next(info for info in catalog() if info.name == "digits")
    assert (info.nodes, info.edges, info.features, info.classes) == (
        graph.num_nodes,
        graph.num_edges,
        graph.num_features,
        graph.num_classes,
    )
    assert info.offline


def test_catalogue_needs_no_torch(repo_root: Path):
    code = "import sys; from trainer.data.datasets import catalog; catalog(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=repo_root, check=False).returncode == 0


def test_home_is_the_environments_or_the_users(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NML_HOME", "~/elsewhere")
    assert nml_home() == Path.home() / "elsewhere"
    monkeypatch.delenv("NML_HOME")
    assert nml_home() == Path.home() / ".nml"


SMALL = SyntheticSpec(nodes=50, features=100)


def test_rownorm_equals_scikit_learn_and_stays_sparse():
    raw = load(DataSpec(name="synthetic", synthetic=SMALL)).x
    x = load(DataSpec(name="synthetic", synthetic=SMALL, features="rownorm")).x
    assert x.layout == raw.layout == torch.sparse_csr
    np.testing.assert_allclose(x.to_dense(), normalize(raw.to_dense().numpy(), norm="l1"), rtol=1e-6)
    np.testing.assert_allclose(rownorm(raw.to_dense()), x.to_dense(), rtol=1e-6)


def test_rownorm_keeps_zero_rows_and_refuses_negative_features():
    assert rownorm(torch.tensor([[0.0, 0.0], [1.0, 3.0]])).tolist() == [[0, 0], [0.25, 0.75]]
    with pytest.raises(InvalidInput, match="zscore"):
        rownorm(torch.tensor([[-1.0, 2.0]]))


def test_zscore_equals_scikit_learn_and_is_dense():
    raw = load(DataSpec(name="synthetic", synthetic=SMALL)).x.to_dense()
    x = load(DataSpec(name="synthetic", synthetic=SMALL, features="zscore")).x
    assert x.layout == torch.strided
    np.testing.assert_allclose(x, StandardScaler().fit_transform(raw.double().numpy()), atol=1e-5)


def test_zscore_turns_constant_columns_to_zero_and_leaves_its_input():
    raw = torch.tensor([[0.1, 1e6 + 1], [0.1, 1e6 - 1]])
    kept = raw.clone()
    assert zscore(raw).tolist() == [[0, 1], [0, -1]]
    assert torch.equal(raw, kept)


def test_features_of_files_are_prepared_too(tmp_path: Path):
    np.savez(tmp_path / "g.npz", edge_index=[[0], [1]], x=[[1.0, 3.0], [2.0, 2.0]])
    spec = DataSpec(name="files", files=FilesSpec(npz=str(tmp_path / "g.npz")), features="rownorm")
    assert load(spec).x.tolist() == [[0.25, 0.75], [0.5, 0.5]]
