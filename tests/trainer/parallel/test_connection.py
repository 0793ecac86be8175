"""The settings for Ray: always an explicit authentication mode, a token of one's own or the cluster's, never a leak."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from trainer.config import parse_spec
from trainer.errors import InvalidInput
from trainer.parallel.connection import LOCAL, python_path, ray_address, ray_environment
from trainer.parallel.ray_train import fit_parallel
from trainer.run.stop_file import clear_stop, request_stop, stop_requested

CLUSTER = "10.0.0.1:6379"


def test_a_local_ray_gets_a_fresh_token_whatever_the_user_has_set():
    users = {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "theirs", "RAY_AUTH_TOKEN_PATH": "/theirs", "HOME": "/home"}
    first, second = (ray_environment(users, LOCAL) for _ in range(2))
    assert first["RAY_AUTH_MODE"] == "token"
    assert len(first["RAY_AUTH_TOKEN"]) >= 32
    assert first["RAY_AUTH_TOKEN"] not in ("theirs", second["RAY_AUTH_TOKEN"])
    assert "RAY_AUTH_TOKEN_PATH" not in first
    assert first["HOME"] == "/home"
    assert users["RAY_AUTH_MODE"] == "disabled"


def test_a_named_cluster_gets_the_users_token(tmp_path):
    (tmp_path / "token").write_text("secret")
    for users in ({"RAY_AUTH_TOKEN": "secret"}, {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}):
        environment = ray_environment(users, CLUSTER, home=tmp_path)
        assert environment["RAY_AUTH_MODE"] == "token"
        assert users.items() <= environment.items()


def test_a_token_in_rays_own_place_counts(tmp_path):
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    assert ray_environment({}, CLUSTER, home=tmp_path)["RAY_AUTH_MODE"] == "token"


@pytest.mark.parametrize("users", [{}, {"RAY_AUTH_MODE": "token"}, {"RAY_AUTH_TOKEN": ""}])
def test_a_named_cluster_without_a_token_is_refused_with_the_remedy(users, tmp_path):
    with pytest.raises(InvalidInput, match=r"10\.0\.0\.1:6379.*RAY_AUTH_TOKEN"):
        ray_environment(users, CLUSTER, home=tmp_path)


def test_a_token_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(InvalidInput, match="nowhere"):
        ray_environment({"RAY_AUTH_TOKEN_PATH": "/nowhere"}, CLUSTER, home=tmp_path)


def test_a_cluster_without_authentication_must_be_asked_for(tmp_path):
    assert ray_environment({"RAY_AUTH_MODE": "disabled"}, CLUSTER, home=tmp_path)["RAY_AUTH_MODE"] == "disabled"


@pytest.mark.parametrize("address", [LOCAL, CLUSTER])
def test_usage_statistics_are_off(address):
    environment = ray_environment({"RAY_USAGE_STATS_ENABLED": "1", "RAY_AUTH_TOKEN": "secret"}, address)
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.parametrize(
    "environ, expected", [({}, LOCAL), ({"RAY_ADDRESS": " "}, LOCAL), ({"RAY_ADDRESS": "a:1"}, "a:1")]
)
def test_the_address_is_the_users_or_local(environ, expected):
    assert ray_address(environ) == expected


def test_another_process_finds_the_same_trainer(tmp_path):
    environment = dict(os.environ) | python_path({"PYTHONPATH": str(tmp_path)})
    code = "import os, sys, trainer; print(trainer.__file__); print(os.environ['PYTHONPATH'])"
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found, path = run.stdout.splitlines()
    assert os.path.samefile(found, sys.modules["trainer"].__file__)
    assert path.endswith(str(tmp_path))


def test_without_ray_installed_the_error_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # what an import sees where it is not installed
    with pytest.raises(InvalidInput, match=r"workers=4.*pip install 'nml-gcl\[train\]'"):
        fit_parallel(parse_spec({"run": {"workers": 4}}), tmp_path, train="standins:train")


def test_a_request_to_stop_says_how_and_can_be_forgotten(tmp_path):
    assert stop_requested(tmp_path) is None
    clear_stop(tmp_path)
    request_stop(tmp_path, "finish")
    assert stop_requested(tmp_path) == "finish"
    request_stop(tmp_path, "cancel")
    assert stop_requested(tmp_path) == "cancel"
    clear_stop(tmp_path)
    assert stop_requested(tmp_path) is None
    (tmp_path / ".stop").touch()
    assert stop_requested(tmp_path) == "cancel"
