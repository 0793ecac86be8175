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

from trainer.config import DatasetName, DataSpec, FilesSpec, SyntheticSpec
from trainer.data.features import rownorm, zscore
from trainer.datasets import LOADERS, catalog, load
from trainer.errors import InvalidInput
from trainer.home import nml_home


def test_every_name_of_the_spec_has_a_loader_and_a_line():
    assert set(LOADERS) == set(get_args(DatasetName)) == {info.name for info in catalog()}


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
    code = "import sys; from trainer.datasets import catalog; catalog(); sys.exit('torch' in sys.modules)"
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
