"""How many CPUs there are: affinity, and the quotas of both versions of control groups."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.planning.cpus import usable_cpus

ALL = len(os.sched_getaffinity(0))


def found(root: Path, membership: str, files: dict[str, str]) -> int:
    proc, cgroup = root / "proc", root / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(membership)
    for name, text in files.items():
        (cgroup / name).parent.mkdir(parents=True, exist_ok=True)
        (cgroup / name).write_text(text)
    return usable_cpus(proc=proc, cgroup=cgroup)


@pytest.mark.parametrize(
    "membership, files, cpus",
    [
        ("0::/\n", {}, ALL),
        ("0::/\n", {"cpu.max": "max 100000\n"}, ALL),
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),  # half a CPU is still one thread
        ("0::/a/b\n", {"a/cpu.max": "90000 100000\n", "a/b/cpu.max": "max 100000\n"}, 1),
        ("0::/hidden/by/the/container\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "6400000 100000\n"}, min(ALL, 64)),
        ("0::/\n", {"cpu.max": "nonsense\n"}, ALL),
        ("4:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "100000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, 1),
        ("4:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, ALL),
        ("5:memory:/x\n", {"cpu/x/cpu.cfs_quota_us": "100000\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, ALL),
    ],
)
def test_the_least_of_affinity_and_quotas(tmp_path, membership, files, cpus):
    assert found(tmp_path, membership, files) == cpus


def test_rounded_up(tmp_path):
    assert found(tmp_path, "0::/\n", {"cpu.max": "150000 100000\n"}) == min(ALL, 2)


def test_an_affinity_counts():
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    code += "from trainer.planning.cpus import usable_cpus; print(usable_cpus())"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "1"
