"""`python -m trainer SPEC --out DIR [--resume] [--memory-limit 4GB] [--shrunk 1]`: train one spec with no terminal.

So does a service or a scheduler. Progress goes to DIR/events.jsonl and DIR/log.txt; the exit code tells the kind of
failure (trainer.errors), and trainer.process.outcome the reason.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from trainer.config import parse_spec
from trainer.files.documents import read_document
from trainer.planning.memory import parse_size
from trainer.process.outcome import exit_code_for
from trainer.process.threads import wait_politely


def main(arguments: list[str] | None = None) -> int:
    """Parse, train, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer", description=__doc__)
    parser.add_argument("spec", type=Path, help="JSON or YAML training spec")
    parser.add_argument("--out", type=Path, required=True, help="run directory")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, or start it")
    parser.add_argument("--memory-limit", help="memory to plan with, e.g. 4GB; default: most of what there is")
    parser.add_argument(
        "--shrunk", type=int, default=0, metavar="K", choices=range(100),
        help="how often memory has run out so far, as seen from outside: the plan is made smaller once for each",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    wait_politely()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        spec = parse_spec(read_document(options.spec))
        limit = None if options.memory_limit is None else parse_size(options.memory_limit)
        from trainer.loop import fit  # after validation: a bad spec should not cost the seconds torch takes to load
        from trainer.tracking import Tracker

        callbacks = [Tracker()] if spec.run.track else []
        fit(
            spec, options.out, resume=options.resume, callbacks=callbacks, memory_limit=limit, shrunk=options.shrunk,
            own_process=True,
        )  # fmt: skip
    except Exception as error:
        return exit_code_for(error, logging.getLogger("trainer"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
