"""`python shim_process.py ORDER.json CLOCK`: a shim whose clock stands still but for what a test says.

CLOCK is a file; every byte in it is a second.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

from service.dispatch import shim


def main() -> int:
    launch, clock = sys.argv[1], Path(sys.argv[2])
    shim.time = SimpleNamespace(  # type: ignore[assignment]
        monotonic=lambda: float(clock.stat().st_size), time=time.time
    )
    return shim.main([launch])


if __name__ == "__main__":
    sys.exit(main())
