"""What a command shows on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess


def shown_on_terminal(command: list[str], **environment: str) -> bytes:
    """Everything a command writes to standard error when that is a terminal; the command must succeed."""
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=end, env={**os.environ, "TERM": "xterm", **environment}
    )
    os.close(end)
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # the other side closed
            break
        if not piece:
            break
        shown += piece
    assert process.wait() == 0
    return shown
