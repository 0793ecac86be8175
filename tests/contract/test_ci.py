"""`.ci/run` and the workflow run the same targets, and a test that needed a second chance is named at the end."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

FAKE_MAKE = """#!/bin/sh
echo "$@" >> calls
for target in $FAILING; do [ "$1" = "$target" ] && exit 2; done
exit 0
"""


@pytest.fixture
def project(tmp_path: Path, repo_root: Path) -> Path:
    """`.ci/run` in a directory of its own, beside a `make` that only notes what it was asked for."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(repo_root / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "bin").mkdir()
    for name in ("make", "chromium"):  # a browser that is there need not be installed
        program = tmp_path / "bin" / name
        program.write_text(FAKE_MAKE, encoding="utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    cache = tmp_path / ".pytest_cache" / "v" / "cache"
    cache.mkdir(parents=True)
    (cache / "lastfailed").write_text(json.dumps({"tests/a.py::test_b": True, "tests/a.py::test_c[d e]": True}))
    return tmp_path


def run(project: Path, *targets: str, failing: str = "") -> tuple[int, list[str], list[str]]:
    """Exit code, lines of output, and the targets that were made."""
    done = subprocess.run(
        [".ci/run", *targets], cwd=project, capture_output=True, text=True, check=False, timeout=60,
        env={"PATH": f"{project / 'bin'}:/usr/bin:/bin", "FAILING": failing},
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines(), (project / "calls").read_text(encoding="utf-8").split()


def workflow(repo_root: Path) -> dict[str, Any]:
    return yaml.safe_load((repo_root / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))


def test_workflow_and_script_run_the_same_targets(project: Path, repo_root: Path):
    jobs = workflow(repo_root)["jobs"]
    for job in jobs.values():
        assert re.search(r"\.ci/run \$\{\{ matrix\.target \}\}", job["steps"][-1]["run"])
    status, _, made = run(project)
    assert status == 0
    assert made == [target for job in jobs.values() for target in job["strategy"]["matrix"]["target"]]


def test_workflow_is_one_that_github_takes(repo_root: Path):
    program = Path(sys.executable).parent / "check-jsonschema"
    words = [str(program), "--builtin-schema", "vendor.github-workflows", str(repo_root / ".github/workflows/ci.yml")]
    checked = subprocess.run(words, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_long_targets_run_on_a_schedule(repo_root: Path):
    document = workflow(repo_root)
    assert document[True]["schedule"]  # YAML reads `on` as true
    assert "schedule" in document["jobs"]["nightly"]["if"]
    assert "if" not in document["jobs"]["change"]


def test_all_targets_exist(project: Path, repo_root: Path):
    makefile = (repo_root / "Makefile").read_text(encoding="utf-8")
    for target in {*run(project)[2], "test-again", "env"}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_a_test_that_needed_a_second_chance_is_named_at_the_very_end(project: Path):
    status, lines, made = run(project, failing="test")
    assert status == 0
    assert made[:4] == ["lint", "test", "test-again", "test-slow"]
    assert lines[-3:] == [
        "=== TESTS THAT NEEDED A SECOND CHANCE ===",
        "make test: tests/a.py::test_b",
        "make test: tests/a.py::test_c[d e]",
    ]


def test_a_test_that_fails_twice_fails_the_change_and_is_named(project: Path):
    status, lines, made = run(project, failing="test-slow test-again")
    assert status != 0
    assert made == ["lint", "test", "test-slow", "test-again"]
    assert lines[-1] == "make test-slow: tests/a.py::test_c[d e]"


def test_lint_gets_no_second_chance(project: Path):
    status, lines, made = run(project, failing="lint")
    assert (status != 0, made, lines) == (True, ["lint"], [])


def test_targets_can_be_chosen(project: Path):
    assert run(project, "test-slow") == (0, [], ["test-slow"])
