"""`python -m trainer SPEC --out DIR [--resume]`: train one spec with no terminal, as a service or a scheduler does.

Progress goes to DIR/events.jsonl and DIR/log.txt; the exit code tells the kind of failure (trainer.errors).
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from trainer.config import parse_spec
from trainer.documents import read_document
from trainer.errors import TrainerError
from trainer.threads import wait_politely


def main(arguments: list[str] | None = None) -> int:
    """Parse, train, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer", description=__doc__)
    parser.add_argument("spec", type=Path, help="JSON or YAML training spec")
    parser.add_argument("--out", type=Path, required=True, help="run directory")
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out, or start it")
    options = parser.parse_args(arguments)
    wait_politely()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        spec = parse_spec(read_document(options.spec))
        from trainer.loop import fit  # after validation: a bad spec should not cost the seconds torch takes to load
        from trainer.tracking import Tracker

        fit(spec, options.out, resume=options.resume, callbacks=[Tracker()] if spec.run.track else [])
    except TrainerError as error:
        logging.getLogger("trainer").error("%s: %s", error.kind, error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
