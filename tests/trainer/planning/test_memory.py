"""How much memory there is: sizes as people write them, and the limits of machine and container."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainer.errors import InvalidInput
from trainer.planning.memory import LARGEST, SMALLEST, USED_SHARE, parse_size, peak_rss, usable_memory

GB = 10**9
MACHINE_KB = 16_000_000


@pytest.mark.parametrize(
    "text, size",
    [
        ("4GB", 4 * GB),
        ("4gb", 4 * GB),
        ("4 G", 4 * GB),
        ("512MB", 512 * 10**6),
        ("512 MiB", 512 * 2**20),
        ("3GiB", 3 * 2**30),
        ("0.5gb", GB // 2),
        (".5GB", GB // 2),
        ("3e9", 3 * GB),
        ("2.5e9 b", 5 * GB // 2),
        ("1500000kB", 3 * GB // 2),
        ("1000000", SMALLEST),
        ("1000TB", LARGEST),
    ],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "4", "0GB", "-4GB", "999kB", "1001TB", "1e99", "1e999GB", "nan", "infGB", "4XB", "4 GB 2", "1.2.3GB", ".GB"],
)
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(InvalidInput, match="4GB"):
        parse_size(text)


def system(root: Path, membership: str, limits: dict[str, str]) -> dict[str, Path]:
    """The files by which Linux tells memory and control groups, below `root`."""
    proc, cgroup = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal:       {MACHINE_KB} kB\nMemFree:          100000 kB\n")
    (proc / "self" / "cgroup").write_text(membership)
    for name, text in limits.items():
        (cgroup / name).parent.mkdir(parents=True, exist_ok=True)
        (cgroup / name).write_text(text)
    return {"proc": proc, "cgroup": cgroup}


@pytest.mark.parametrize(
    "membership, limits, expected",
    [
        ("0::/\n", {}, MACHINE_KB * 1024),
        ("0::/\n", {"memory.max": "max\n"}, MACHINE_KB * 1024),
        ("0::/\n", {"memory.max": "2000000000\n"}, 2 * GB),
        ("0::/\n", {"memory.max": str(2**62)}, MACHINE_KB * 1024),
        ("0::/jobs/one\n", {"jobs/memory.max": "3000000000", "jobs/one/memory.max": "max"}, 3 * GB),  # set further up
        ("0::/jobs/one\n", {"jobs/memory.max": "3000000000", "jobs/one/memory.max": "1000000000"}, GB),
        ("0::/not/visible\n", {"memory.max": "2000000000"}, 2 * GB),  # a container sees its group as the root
        ("5:cpu:/x\n4:memory:/box\n0::/\n", {"memory/box/memory.limit_in_bytes": "1500000000"}, 3 * GB // 2),  # v1
        ("4:memory:/hidden\n", {"memory/memory.limit_in_bytes": "1500000000"}, 3 * GB // 2),
        ("4:memory:/box\n", {"memory/box/memory.limit_in_bytes": "9223372036854771712"}, MACHINE_KB * 1024),
    ],
)
def test_a_container_with_less_than_the_machine_is_planned_for_as_it_is(tmp_path, membership, limits, expected):
    assert usable_memory(**system(tmp_path, membership, limits)) == int(USED_SHARE * expected)


def test_without_control_groups_the_machine_counts(tmp_path):
    places = system(tmp_path, "", {})
    (places["proc"] / "self" / "cgroup").unlink()
    assert usable_memory(**places) == int(USED_SHARE * MACHINE_KB * 1024)


def test_here_there_is_some_memory():
    assert 10**8 < usable_memory() < 10**15


def test_the_peak_counts_what_this_process_had_and_not_what_its_parent_has():
    """A small child of a large process: getrusage would tell the parent's peak."""
    held = bytearray(400 * 10**6)
    held[::4096] = b"x" * len(held[::4096])  # touched, so resident
    assert peak_rss() > len(held)
    code = (
        "from trainer.planning.memory import peak_rss; print(peak_rss()); b = bytearray(50_000_000); print(peak_rss())"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = map(int, child.stdout.split())
    assert before < 200 * 10**6
    assert after - before > 45 * 10**6
