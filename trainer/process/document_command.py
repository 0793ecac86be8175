"""A command that carries out one JSON document which the service wrote: `python -m MODULE spec.json`.

The exit code tells the kind of failure (trainer.errors), and trainer.process.outcome the reason. The reason reaches
clients of the service, so it holds no path of the machine. Loads nothing heavy.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from trainer.errors import Infrastructure, InvalidInput, OutOfMemory, TrainerError
from trainer.process.home import nml_home
from trainer.process.outcome import exit_code_for
from trainer.process.threads import wait_politely
from trainer.spec.base import explain

Document = TypeVar("Document")


def run_document(
    arguments: Sequence[str] | None, *, module: str, about: str | None, parse: Callable[[bytes], Document],
    work: Callable[[Document, Path], None], trouble: str, reword: Callable[[str], str] = str,
) -> int:  # fmt: skip
    """Do what the document named on the command line says; returns the exit code.

    Args:
        module: of the command, for its help; also the name of the log.
        about: the command's help.
        parse: validates the document; raises pydantic's ValidationError.
        work: carries it out, given the document and the home.
        trouble: how the message of an unexpected error begins, such as "the import failed".
        reword: makes the message of a failure one for clients.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("spec", type=Path, help="JSON document that says what to do")
    options = parser.parse_args(arguments)
    wait_politely()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    log, home = logging.getLogger(module), nml_home()
    failure: TrainerError
    try:
        work(_read(options.spec, parse), home)
        return 0
    except TrainerError as error:
        failure = error
    except MemoryError as error:
        failure = OutOfMemory(f"{trouble}: memory ran out ({error})")
    except Exception as error:
        log.exception(trouble)
        failure = Infrastructure(f"{trouble} ({error})")
    message = str(failure).replace(f"{home}{os.sep}", "").replace(str(home), "home")
    return exit_code_for(type(failure)(reword(message)), log)


def _read(path: Path, parse: Callable[[bytes], Document]) -> Document:
    try:
        return parse(path.read_bytes())
    except ValidationError as error:
        raise InvalidInput(explain(error)) from error
    except OSError as error:
        raise Infrastructure(f"the document cannot be read ({error.strerror})") from error
