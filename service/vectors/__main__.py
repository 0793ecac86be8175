"""`python -P -m service.vectors SPEC.json`: publish a run's embeddings or index a version, as a job does.

    {"do": "publish", "version": "<id of the training job>"}
    {"do": "index", "version": "<the same>", "kind": "hnsw"}       or "ivf"

Publishing reads NML_HOME/runs/<version> and makes NML_HOME/embeddings/<version>; indexing adds to that folder. What is
there already, and whole, is not made again, so that a killed job can be run again. Messages hold no path of the server.
The exit code tells the kind of failure (trainer.errors).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from service.vectors.layout import IndexKind
from trainer.config import Spec, explain
from trainer.errors import Infrastructure, InvalidInput, OutOfMemory, TrainerError
from trainer.home import nml_home
from trainer.outcome import conclude
from trainer.threads import wait_politely

Version = Annotated[str, Field(pattern=r"^[0-9a-hjkmnp-tv-z]{26}$")]
log = logging.getLogger("service.vectors")


class Publish(Spec):
    """Make a version of a run's embeddings."""

    do: Literal["publish"]
    version: Version


class Index(Spec):
    """Build a search index of a version."""

    do: Literal["index"]
    version: Version
    kind: IndexKind


Order = Annotated[Publish | Index, Field(discriminator="do")]


def main(arguments: list[str] | None = None) -> int:
    """Parse, work, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m service.vectors", description=__doc__)
    parser.add_argument("spec", type=Path, help="JSON document that says what to do")
    options = parser.parse_args(arguments)
    wait_politely()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    home = nml_home()
    try:
        run(_read(options.spec), home)
    except TrainerError as error:
        return conclude(type(error)(_for_clients(str(error), home)), log)
    except MemoryError as error:
        return conclude(OutOfMemory(f"memory ran out while the embeddings were made ready ({error})"), log)
    except Exception as error:
        log.exception("the embeddings could not be made ready")
        message = f"the embeddings could not be made ready ({error})"
        return conclude(Infrastructure(_for_clients(message, home)), log)
    return 0


def run(order: Publish | Index, home: Path) -> None:
    """Do what is asked.

    Raises:
        InvalidInput: the run or the version is not there, or cannot be used.
        OutOfMemory, Infrastructure: trying again may help.
    """
    place = home / "embeddings" / order.version
    if isinstance(order, Publish):
        from service.vectors.building import build_version

        source = home / "runs" / order.version
        info = build_version(
            source / "embeddings", source / "spec.json", place, version=order.version, progress=Progress()
        )
        log.info("published %d vectors of %d numbers", info.rows, info.dim)
        return
    from service.vectors.approximate import build_index
    from service.vectors.table import Table

    try:
        table = Table.open(place)
    except FileNotFoundError as error:
        raise InvalidInput("the version is not there any more. Publish it again.") from error
    about = build_index(table, order.kind, progress=Progress())
    log.info("index %s: recall@10 %s", order.kind, about.get("recall_at_10"))


class Progress:
    """Tells of work in the log, a line for every tenth."""

    def __init__(self) -> None:
        self._told: tuple[str, int] | None = None

    def __call__(self, what: str, share: float) -> None:
        tenth = what, int(10 * share)
        if tenth != self._told:
            self._told = tenth
            log.info("%s: %.0f %%", what, 100 * share)


def _read(path: Path) -> Publish | Index:
    try:
        order: Publish | Index = TypeAdapter(Order).validate_json(path.read_bytes())
    except ValidationError as error:
        raise InvalidInput(explain(error)) from error
    except OSError as error:
        raise Infrastructure(f"the order cannot be read ({error.strerror})") from error
    return order


def _for_clients(message: str, home: Path) -> str:
    return message.replace(f"{home}{os.sep}", "").replace(str(home), "home")


if __name__ == "__main__":
    sys.exit(main())
