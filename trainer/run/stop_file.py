"""How the process that waits for a parallel run asks its workers to stop: one word in a file of the run directory.

`finish`: end as if this had been the last epoch (a callback returned Signal.STOP). `cancel`: checkpoint and end as
Cancelled (SIGTERM, SIGINT). Rank 0 looks after each epoch and tells the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from trainer.files.atomic import write_atomically

Stop = Literal["finish", "cancel"]
_NAME = ".stop"


def request_stop(run_dir: Path, how: Stop) -> None:
    """Ask; `cancel` replaces an earlier `finish`."""
    write_atomically(run_dir / _NAME, lambda temporary: _write(temporary, how))


def stop_requested(run_dir: Path) -> Stop | None:
    """What was asked for, if anything was. A file with other content, such as one made with touch, means cancel."""
    try:
        word = (run_dir / _NAME).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    return "finish" if word == "finish" else "cancel"


def clear_stop(run_dir: Path) -> None:
    """Forget a request, such as one left by a run that was killed."""
    (run_dir / _NAME).unlink(missing_ok=True)


def _write(path: Path, word: str) -> None:
    path.write_text(word, encoding="utf-8")
