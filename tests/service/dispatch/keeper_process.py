"""`python keeper_process.py ORDER.json CLOCK`: a keeper whose clock stands still but for what a test says.

CLOCK is a file; every byte in it is a second.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

from service.dispatch import keeper


def main() -> int:
    order, clock = sys.argv[1], Path(sys.argv[2])
    keeper.time = SimpleNamespace(  # type: ignore[assignment]
        monotonic=lambda: float(clock.stat().st_size), time=time.time
    )
    return keeper.main([order])


if __name__ == "__main__":
    sys.exit(main())
