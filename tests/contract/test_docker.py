"""The image and compose file keep what they promise: pinned, not root, no secrets, nothing published to the world.

No container engine is needed to check that; where `docker compose` is installed it also reads the file itself.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

SECRET = re.compile(r"PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIAL|_KEY$", re.IGNORECASE)
PASSWORD_IN_URL = re.compile(r"://[^/\s:@]*:(?!\$\{)[^/\s@]+@")


@pytest.fixture(scope="module")
def compose(repo_root: Path) -> dict[str, Any]:
    return yaml.safe_load((repo_root / "docker-compose.yml").read_text(encoding="utf-8"))


def dockerfiles() -> list[str]:
    return sorted(path.name for path in (Path(__file__).parents[2] / "docker").glob("*.Dockerfile"))


@pytest.fixture(params=dockerfiles())
def instructions(request: pytest.FixtureRequest, repo_root: Path) -> list[tuple[str, str]]:
    """A Dockerfile as (instruction, rest) pairs, continued lines joined, comments gone."""
    text = (repo_root / "docker" / request.param).read_text(encoding="utf-8")
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(None, 1)[0].upper(), line.split(None, 1)[1]) for line in text.splitlines() if line.strip()]


def test_base_images_are_pinned_to_a_patch_version(instructions):
    bases = [rest.split()[0] for name, rest in instructions if name == "FROM"]
    assert bases
    assert all(re.search(r":\d+\.\d+\.\d+", base) for base in bases), bases


def test_image_does_not_run_as_root(instructions):
    last_stage = max(i for i, (name, _) in enumerate(instructions) if name == "FROM")
    users = [rest for name, rest in instructions[last_stage:] if name == "USER"]
    assert users
    assert not re.match(r"(root|0)(:|$)", users[-1].strip())


def test_every_install_is_constrained(instructions):
    commands = [part for name, rest in instructions if name == "RUN" for part in rest.split("&&") if "install" in part]
    installs = [command for command in commands if re.search(r"\bpip3? install\b", command)]
    assert installs
    assert all("-c constraints.txt" in command for command in installs), installs


def test_no_package_index_is_written_down(instructions):
    assert not [rest for _, rest in instructions if "://" in rest]
    indexes = {rest for name, rest in instructions if name == "ARG" and rest.startswith("TORCH_INDEX")}
    assert indexes <= {'TORCH_INDEX=""'}


def test_secrets_have_no_defaults(compose):
    for name, service in compose["services"].items():
        environment = service.get("environment", {})
        assert isinstance(environment, dict), f"{name}: write environment as key: value"
        for key, value in environment.items():
            if SECRET.search(key):
                assert str(value).startswith(f"${{{key}:?"), f"{name}: {key} must be ${{{key}:?...}}, without a default"
    assert not PASSWORD_IN_URL.search(yaml.safe_dump(compose))


def test_ports_are_published_on_loopback_only(compose):
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(str(port).startswith("127.0.0.1:") for port in ports), ports


def test_what_must_outlive_a_container_is_on_a_named_volume(compose):
    for name in ("mlflow", "train"):
        volumes = [volume.split(":")[0] for volume in compose["services"][name]["volumes"]]
        assert volumes, name
        assert set(volumes) <= set(compose["volumes"]), name


def test_dockerfiles_of_the_compose_file_exist(compose, repo_root):
    for service in compose["services"].values():
        assert (repo_root / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def _compose_missing() -> bool:
    docker = shutil.which("docker")
    return docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode != 0


@pytest.mark.skipif(_compose_missing(), reason="the `docker compose` command is not installed")
def test_compose_accepts_the_file(repo_root):
    command = ["docker", "compose", "--profile", "train", "config", "--quiet"]
    run = subprocess.run(command, cwd=repo_root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
