"""The images keep what they promise: pinned, small, not root, no secrets, and clean to hadolint.

No container engine is needed to check that.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.contract.dockerfile import last_stage, read

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted(path.name for path in (ROOT / "docker").glob("*.Dockerfile"))
OURS = ["api.Dockerfile", "mlflow.Dockerfile", "worker.Dockerfile"]  # with Python; the others bring a program
TOO_LARGE = {"torch", "torch-geometric", "ray", "mlflow", "scipy", "scikit-learn", "pandas", "optuna"}
MIRRORS = {"TORCH_INDEX", "PYG_WHEELS"}


@pytest.fixture(params=DOCKERFILES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=OURS)
def ours(request: pytest.FixtureRequest) -> str:
    return request.param


def test_images_of_the_cluster_are_there():
    assert set(OURS) <= set(DOCKERFILES)


def test_base_images_are_pinned_to_a_patch_version(name):
    bases = [rest.split()[0] for word, rest in read(name) if word == "FROM"]
    assert bases
    assert all(re.search(r":\d+\.\d+\.\d+-", base) for base in bases), bases


def test_image_is_what_a_first_stage_has_built(ours):
    assert [rest.split()[1:] for word, rest in read(ours) if word == "FROM"] == [["AS", "build"], []]


def test_our_images_have_the_same_base():
    """An interpreter named by the dispatcher must be the same on a worker; and layers are shared."""
    assert len({rest.split()[0] for name in OURS for word, rest in read(name) if word == "FROM"}) == 1


def test_image_does_not_run_as_root(name):
    users = [rest for word, rest in last_stage(name) if word == "USER"]
    assert users == ["10001:10001"]


def test_environment_lies_where_commands_of_the_dispatcher_expect_it(ours):
    copied = [rest for word, rest in last_stage(ours) if word == "COPY" and "--from=build" in rest]
    assert copied == ["--from=build /opt/nml /opt/nml"]
    assert any("PATH=/opt/nml/bin:$PATH" in rest for word, rest in last_stage(ours) if word == "ENV")


def test_installer_is_left_behind(ours):
    builds = [rest for word, rest in read(ours) if word == "RUN" and "pip install" in rest]
    assert re.search(r"pip uninstall --yes [a-z ]*\bpip\b", builds[-1])
    assert not [rest for word, rest in last_stage(ours) if word == "RUN" and "pip" in rest]


def test_every_install_is_constrained(ours):
    commands = [part for word, rest in read(ours) if word == "RUN" for part in rest.split("&&")]
    installs = [command for command in commands if re.search(r"\bpip3? install\b", command)]
    assert installs
    assert all("-c constraints.txt" in command for command in installs), installs


def test_no_package_index_is_written_down(name):
    hosts = [word for _, rest in read(name) for word in re.findall(r"\S+://\S*", rest)]
    assert not [word for word in hosts if not re.search(r"http://127\.0\.0\.1:|=postgresql\+psycopg://\"?,?$", word)]
    arguments = {rest for word, rest in read(name) if word == "ARG"}
    assert arguments <= {f'{name}=""' for name in MIRRORS}


def test_no_secret_is_built_in(name):
    for word, rest in read(name):
        if word in ("ENV", "ARG"):
            assert not re.search(r"\w*(PASSWORD|SECRET|TOKEN|CREDENTIAL|_KEY)\w*=", rest), rest


def test_image_says_how_it_is_stopped_and_started(ours):
    words = dict(last_stage(ours))
    assert words["STOPSIGNAL"] == "SIGTERM"
    assert json.loads(words["CMD"]), "exec form: a shell in between would keep the signal for itself"


@pytest.mark.parametrize("name", ["api.Dockerfile", "mlflow.Dockerfile"])
def test_a_server_s_image_checks_its_own_health(name):
    words = dict(last_stage(name))
    assert words["EXPOSE"] in words["HEALTHCHECK"]
    assert "curl" not in words["HEALTHCHECK"]


def required(*extras: str) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["dependencies"] + [line for extra in extras for line in project["optional-dependencies"][extra]]


def test_what_the_api_image_installs_brings_nothing_large():
    """Resolved over the installed packages, as pip would."""
    todo, found = [Requirement(line) for line in required("serve", "track")], set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        for extra in requirement.extras or {""}:
            if (name, extra) in found:
                continue
            found.add((name, extra))
            try:
                lines = requires(name) or []
            except PackageNotFoundError:
                continue  # for another platform
            needed = map(Requirement, lines)
            todo += [one for one in needed if one.marker is None or one.marker.evaluate({"extra": extra})]
    names = {name for name, _ in found}
    assert {"psycopg-binary", "starlette", "mako"} <= names, "the walk did not get beyond the first step"
    assert not names & TOO_LARGE


@pytest.mark.parametrize("name, extra", [("api.Dockerfile", "track"), ("worker.Dockerfile", "train")])
def test_list_of_requirements_is_the_project_s(name, extra):
    """The one-liner of the image, run as it stands there."""
    (script,) = re.findall(
        r'RUN python -c "(.+?)"\s*(?:\\\s*)?>', (ROOT / "docker" / name).read_text(), flags=re.DOTALL
    )
    script = script.replace("\\\n", "")
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == required("serve", extra)


def test_what_images_copy_is_in_the_build_context(name):
    """The ignore file lets nothing in but a few names; a folder is in with all below it."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = [line[1:] for line in lines if line.startswith("!") and line != "!docker"]
    for word, rest in read(name):
        if word == "COPY" and "--from" not in rest:
            given = rest.split()
            sources = [word for word in given[:-1] if not word.startswith("--")]
            if sources[0].startswith("docker/"):
                assert "--chmod=0644" in given, "another user than the one who checked it out reads it"
            for source in sources:
                assert (ROOT / source).exists()
                assert any(source == each or source.startswith(f"{each}/") for each in allowed), source
    assert {"*", "docker/*", "**/__pycache__"} <= set(lines)


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_finds_nothing(name):
    program = Path(sys.executable).parent / "hadolint"
    done = subprocess.run(
        [program, "--failure-threshold", "style", ROOT / "docker" / name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_would_find_something(tmp_path):
    program, bad = Path(sys.executable).parent / "hadolint", tmp_path / "Dockerfile"
    bad.write_text("FROM python\nRUN pip install flask && cd /x\n")
    done = subprocess.run([program, "--failure-threshold", "style", bad], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert {"DL3006", "DL3013"} <= set(re.findall(r"DL\d+", done.stdout))
