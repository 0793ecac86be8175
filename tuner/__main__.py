"""`python -m tuner SPEC --out DIR`: run one sweep with no terminal; the same again goes on with it.

So does a service or a scheduler. Progress goes to DIR/events.jsonl and DIR/log.txt; the exit code tells the kind of
failure (trainer.errors), and trainer.process.outcome the reason.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from trainer.files.documents import read_document
from trainer.process.outcome import exit_code_for
from trainer.process.threads import wait_politely
from tuner.config import parse_sweep


def main(arguments: list[str] | None = None) -> int:
    """Parse, run, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tuner", description=__doc__)
    parser.add_argument("spec", type=Path, help="JSON or YAML sweep spec")
    parser.add_argument("--out", type=Path, required=True, help="sweep directory: new, or that of this very sweep")
    options = parser.parse_args(arguments)
    wait_politely()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        spec = parse_sweep(read_document(options.spec))
        from tuner.sweep import run_sweep  # after validation, which needs nothing heavy

        run_sweep(spec, options.out)
    except Exception as error:
        return exit_code_for(error, logging.getLogger("tuner"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
