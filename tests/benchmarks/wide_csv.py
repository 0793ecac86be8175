"""Seconds, peak memory and outcome of imports of very wide CSV tables: `python -m tests.benchmarks.wide_csv`.

Each runs in a process of its own with the memory limit that its job would have (service.dispatch.shim).
"""

from __future__ import annotations

import itertools
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from service.dispatch.shim import data_limit
from tests.abuse.test_tables import MILLION, WIDE, names, row
from tests.service.datasets.importers import start_process

UPLOAD, REF = "c0ffee", "wide.0123456789ab"
NEED = 400_000_000  # service.datasets.checks: the least that an import asks for
CASES: dict[str, Callable[[], Iterable[str]]] = {  # pieces, so that the measuring process stays small
    "a million columns": lambda: (names(MILLION), row("0", MILLION), row("1", MILLION)),
    "two rows": lambda: (names(WIDE), row("0", WIDE), row("1", WIDE)),
    "200 rows": lambda: (names(WIDE), *(row(str(number), WIDE) for number in range(200))),
    "a short row": lambda: (names(WIDE), row("0", WIDE), "1,1\n"),
    "a text among numbers": lambda: (names(WIDE), row("0", WIDE), row("1", WIDE - 1)[:-1] + ",z\n"),
    "a first row of 400 MB": lambda: itertools.chain(["id"], itertools.repeat(",abcdefg" * 1_000, 50_000), ["\n0,1\n"]),
}


def measure(nodes: Callable[[], Iterable[str]]) -> str:
    """Import it, in a child of ours: then its peak is that of its own children."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        upload = home / "uploads" / UPLOAD
        upload.mkdir(parents=True)
        with (upload / "nodes.csv").open("w") as file:
            file.writelines(nodes())
        (upload / "edges.csv").write_text("source,target\n0,1\n")
        parts = '{"nodes": "nodes.csv", "edges": "edges.csv"}'
        (home / "spec.json").write_text(f'{{"ref": "{REF}", "upload": "{UPLOAD}", "parts": {parts}}}')
        limit = data_limit(NEED + 2 * (upload / "nodes.csv").stat().st_size, 1)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        started = time.monotonic()
        done = start_process(home / "spec.json", home)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    seconds = time.monotonic() - started
    return f"{seconds:5.1f} s {peak >> 10:6,} MB  exit code {done.exit_code}  {(done.message or '')[:90]}"


def main() -> None:
    """Print a line for each."""
    for name, nodes in CASES.items():
        child = os.fork()
        if not child:
            print(f"{name:22}", measure(nodes), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
