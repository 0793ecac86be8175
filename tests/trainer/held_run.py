"""`python -m trainer` that comes no further than a moment a test chose, until it is killed or let go."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from trainer.run.directory import read_events

# Arguments: a regular expression for the event after which it waits, the file that lets it go, and the command's own.
# The last lines: it does not outlive the test run.
_HELD = """
import json, os, re, sys, time
from trainer.__main__ import main
from trainer.run.directory import RunDirectory
moment, let_go, parent, record = re.compile(sys.argv[1]), sys.argv[2], os.getppid(), RunDirectory.record
def held(*arguments, **fields):
    event = record(*arguments, **fields)
    while moment.search(json.dumps(event)) and not os.path.exists(let_go) and os.getppid() == parent:
        time.sleep(0.01)
    return event
RunDirectory.record = held
sys.exit(main(sys.argv[3:]))
"""


def start(spec: dict, run: Path, *arguments: str, hold: str | None = None) -> subprocess.Popen:
    """Train `spec` in `run`; with `hold`, wait after the event whose line of events.jsonl matches it (see `let_go`)."""
    file = run.with_suffix(".json")
    file.write_text(json.dumps(spec))
    how = ["-m", "trainer"] if hold is None else ["-c", _HELD, hold, str(_file(run))]
    command = [sys.executable, *how, str(file), "--out", str(run), *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def let_go(run: Path) -> None:
    """Let a run that is held, or will be, go on."""
    _file(run).touch()


def wait_for_event(run: Path, seen: Callable[[dict], bool], process: subprocess.Popen) -> None:
    """Wait until the run has written such an event."""
    deadline = time.monotonic() + 120
    while not any(seen(event) for event in read_events(run)):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "the run did not get that far"
        time.sleep(0.01)


def _file(run: Path) -> Path:
    return run.with_suffix(".let-go")
