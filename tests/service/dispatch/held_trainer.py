"""`python held_trainer.py EPOCH …`: the real trainer; its first attempt halts at that epoch until it is killed."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from service.dispatch.runner import MARKER
from trainer.__main__ import main
from trainer.run.directory import RunDirectory


def hold_after(last: int) -> None:
    """Let the record of that epoch be followed by nothing."""
    real = RunDirectory.record

    def record(self: RunDirectory, kind: str, **fields: Any) -> dict[str, Any]:
        event = real(self, kind, **fields)
        while kind == "epoch" and fields["epoch"] == last:
            time.sleep(0.1)
        return event

    RunDirectory.record = record  # type: ignore[method-assign]


if __name__ == "__main__":
    if os.environ[MARKER].endswith(".1"):
        hold_after(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
