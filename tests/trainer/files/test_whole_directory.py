"""Directories that appear whole or not at all, and what is left when their writer is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.errors import Infrastructure
from trainer.files.whole_directory import sole_writer, whole_directory


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if not entry.name.endswith(".lock"))


def test_nothing_is_there_until_all_is(tmp_path: Path):
    with whole_directory(tmp_path / "deep" / "place") as partial:
        (partial / "a").write_text("1")
        assert not (tmp_path / "deep" / "place").exists()
    assert names(tmp_path / "deep") == ["place"]
    assert (tmp_path / "deep" / "place" / "a").read_text() == "1"


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_nothing_and_keeps_the_old(tmp_path: Path, failure):
    with whole_directory(tmp_path / "place") as partial:
        (partial / "a").write_text("old")

    def fail() -> None:
        with whole_directory(tmp_path / "place", replace=True) as partial:
            (partial / "a").write_text("new")
            raise failure

    with pytest.raises(failure):
        fail()
    assert names(tmp_path) == ["place"]
    assert (tmp_path / "place" / "a").read_text() == "old"


def test_what_is_there_is_replaced_only_on_request(tmp_path: Path):
    for text, replace in (("old", False), ("new", True)):
        with whole_directory(tmp_path / "place", replace=replace) as partial:
            (partial / text).write_text(text)
    assert names(tmp_path) == ["place"]
    assert names(tmp_path / "place") == ["new"]
    with pytest.raises(FileExistsError), whole_directory(tmp_path / "place"):
        pass


def test_the_slower_of_two_writers_is_refused(tmp_path: Path):
    def overtaken() -> None:
        with whole_directory(tmp_path / "place") as slow:
            (slow / "slow").touch()
            with whole_directory(tmp_path / "place") as fast:
                (fast / "fast").touch()

    with pytest.raises(FileExistsError):
        overtaken()
    assert names(tmp_path) == ["place"]
    assert names(tmp_path / "place") == ["fast"]


def test_a_second_writer_of_the_same_place_waits_for_nobody_and_is_told(tmp_path: Path):
    with sole_writer(tmp_path / "place"):
        with pytest.raises(Infrastructure, match="being written by another process"), sole_writer(tmp_path / "place"):
            pass
        with sole_writer(tmp_path / "place.b"):
            pass


KILLED = """
import os, signal, sys
from pathlib import Path
from trainer.files.whole_directory import sole_writer, whole_directory
with sole_writer(Path(sys.argv[1])), whole_directory(Path(sys.argv[1])) as partial:
    (partial / "half").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_is_cleared_by_the_next_of_that_name_alone(tmp_path: Path, repo_root: Path):
    for name in ("a", "a.b"):
        done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / name)], cwd=repo_root, check=False)
        assert done.returncode == -9
    assert len(names(tmp_path)) == 2
    assert not (tmp_path / "a").exists()
    with sole_writer(tmp_path / "a"), whole_directory(tmp_path / "a") as partial:
        (partial / "whole").touch()
    left = names(tmp_path)
    assert len(left) == 2
    assert left[0].startswith(".a.b.")
    assert left[1] == "a"
    assert names(tmp_path / "a") == ["whole"]


def test_an_old_one_moved_aside_by_a_writer_that_died_comes_back(tmp_path: Path):
    with whole_directory(tmp_path / "a") as partial:
        (partial / "old").touch()
    os.rename(tmp_path / "a", tmp_path / ".a.0123456789ab.old")  # killed right here
    (tmp_path / ".a.0123456789ab").mkdir()
    with sole_writer(tmp_path / "a"):
        assert names(tmp_path) == ["a"]
        assert names(tmp_path / "a") == ["old"]
