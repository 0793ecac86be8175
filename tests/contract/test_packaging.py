"""One constraints file pins everything that `make env` installs, and the core is what a client needs."""

from __future__ import annotations

import re
import sysconfig
import tomllib
from importlib.metadata import distribution, distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

NOT_PINNED = {"nml-gcl", "pip", "torch-scatter", "torch-sparse", "pyg-lib"}  # ourselves, the installer, optional wheels
PINNED_BY_TORCH = re.compile(r"(nvidia|cuda)-|triton$")  # a CUDA build of torch names their exact versions itself


@pytest.fixture(scope="module")
def project(repo_root: Path) -> dict[str, Any]:
    return tomllib.loads((repo_root / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pins(repo_root: Path) -> dict[str, Version]:
    lines = (repo_root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    wrong = [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line)]
    assert not wrong, f"write each constraint as name==version: {wrong}"
    names = [line.split("==")[0] for line in lines]
    assert names == sorted(set(names)), "keep constraints.txt sorted, each name once"
    return {name: Version(line.split("==")[1]) for name, line in zip(names, lines, strict=True)}


def test_every_installed_distribution_is_pinned_at_its_version(pins):
    wrong = []
    ours = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    for item in distributions(path=sorted(ours)):  # not what Ray, once imported, brings along in a folder of its own
        name, version = canonicalize_name(item.metadata["Name"]), Version(item.version)
        if name in NOT_PINNED or PINNED_BY_TORCH.match(name):
            continue
        if pins.get(name) != Version(version.public):  # the +cpu of 2.13.0+cpu names a build, not a version
            wrong.append(f"{name}: installed {version}, constraints.txt has {pins.get(name, 'nothing')}")
    assert not wrong, "run `make env`, or pin what it installed:\n" + "\n".join(sorted(wrong))


def test_every_declared_dependency_is_pinned_within_its_range(project, pins):
    declared = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in project["project"]["optional-dependencies"].values():
        declared += extra
    for requirement in map(Requirement, declared):
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} is not in constraints.txt"
        assert pin in requirement.specifier, f"{requirement} excludes its pin {pin}"


def test_the_core_is_the_client(project):
    core = {canonicalize_name(Requirement(line).name) for line in project["project"]["dependencies"]}
    assert core == {"httpx", "numpy", "pydantic", "pyyaml", "rich", "typer"}
    assert project["project"]["optional-dependencies"]["client"] == []


def test_console_script_starts_the_command_line():
    (script,) = distribution("nml-gcl").entry_points.select(group="console_scripts", name="nml")
    assert callable(script.load())
