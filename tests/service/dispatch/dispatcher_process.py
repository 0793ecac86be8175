"""`python dispatcher_process.py [FAULT]`: a dispatcher with the stand-in trainer, in a process that can be killed.

Settings come from the environment. FAULT is a place where it kills itself (PLACES, or CONCLUDED).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Any

from service.dispatch.care import Care
from service.dispatch.dispatcher import Dispatcher
from service.dispatch.local import LocalRunner
from service.dispatch.orders import Orders
from service.dispatch.stopping import Stop, on_signals
from service.settings import Settings
from service.store import open_store
from service.store.claims import Claims
from service.store.embeddings import Embeddings
from tests.service.dispatch.conftest import STANDIN

PLACES: dict[str, tuple[type, str, bool]] = {  # what is called there, and whether we die before or after
    "claimed": (Claims, "claim", True),
    "intended": (LocalRunner, "start", False),
    "started": (LocalRunner, "start", True),
    "recorded": (Care, "_record_reference", True),
    "relaying": (Claims, "record", True),
    "settling": (Care, "_settle", False),
    "finishing": (Claims, "finish", True),
}
CONCLUDED = "concluded"  # a version is ready, but the job that published it has not ended


def die_at(place: str) -> None:
    """Let a real method be followed, or preceded, by kill -9 of this process."""
    owner, name, afterwards = (PLACES | {CONCLUDED: (Embeddings, "finish", True)})[place]
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
    stop = Stop()
    on_signals(stop)
    settings = Settings()
    store = open_store(settings)
    Dispatcher(settings, store, LocalRunner(), orders=Orders(settings, train=STANDIN)).run(stop)
    store.close()


if __name__ == "__main__":
    main()
