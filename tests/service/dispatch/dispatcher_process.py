"""`python dispatcher_process.py [FAULT]`: a dispatcher with the stand-in trainer, in a process that can be killed.

Settings come from the environment. FAULT is a step at which it kills itself (STEPS, or CONCLUDED).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Any

from service.dispatch.attempt import JobAttempt
from service.dispatch.dispatcher import Dispatcher
from service.dispatch.job_commands import JobCommands
from service.dispatch.local import LocalRunner
from service.settings import Settings
from service.store import open_store
from service.store.claims import Claims
from service.store.embeddings import Embeddings
from tests.service.dispatch.conftest import STANDIN
from trainer.process.stop_signals import StopRequest

STEPS: dict[str, tuple[type, str, bool]] = {  # what is called there, and whether we die before or after
    "claimed": (Claims, "claim", True),
    "intended": (LocalRunner, "start", False),
    "started": (LocalRunner, "start", True),
    "recorded": (JobAttempt, "_record_reference", True),
    "relaying": (Claims, "record", True),
    "settling": (JobAttempt, "_settle", False),
    "finishing": (Claims, "finish", True),
}
CONCLUDED = "concluded"  # a version is ready, but the job that published it has not ended


def die_at(step: str) -> None:
    """Let a real method be followed, or preceded, by kill -9 of this process."""
    owner, name, afterwards = (STEPS | {CONCLUDED: (Embeddings, "finish", True)})[step]
    real = getattr(owner, name)

    def fatal(self: Any, *arguments: Any, **named: Any) -> Any:
        if not afterwards:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(self, *arguments, **named)
        said_nothing = name == "claim" and result is None
        idle = name == "record" and not (len(arguments) > 1 and arguments[1])
        if not said_nothing and not idle:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, fatal)


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    if len(sys.argv) > 1:
        die_at(sys.argv[1])
    stop = StopRequest()
    stop.listen()
    settings = Settings()
    store = open_store(settings)
    Dispatcher(settings, store, LocalRunner(), commands=JobCommands(settings, train=STANDIN)).run(stop)
    store.close()


if __name__ == "__main__":
    main()
