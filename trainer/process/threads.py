"""How CPU threads wait for each other."""

from __future__ import annotations

import os


def wait_politely() -> None:
    """Let OpenMP threads sleep at barriers instead of spinning; call before torch is loaded.

    A thread that spins burns the very core that its late partner waits for, so on a shared machine every parallel
    operation stalls; sleeping costs a few percent on an idle one. A value set by the user wins.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
