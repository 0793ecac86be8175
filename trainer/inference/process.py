"""How the process that has torch, `python -m trainer.inference`, is started: its command, and what it is told."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from trainer.parallel.connection import python_path
from trainer.planning.cpus import usable_cpus

COMMAND = (sys.executable, "-P", "-m", "trainer.inference")  # -P: a file in the current folder is no module of ours
_PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH", "NML_DATA")


def environment(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """What it gets, and nothing else: above all no password and no token."""
    threads = environ.get("OMP_NUM_THREADS") or str(max(1, usable_cpus() // 2))
    passed = {name: environ[name] for name in _PASSED_ON if name in environ}
    return passed | python_path(environ) | {"NML_HOME": str(home), "OMP_NUM_THREADS": threads}
