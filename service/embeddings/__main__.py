"""`python -P -m service.embeddings SPEC.json`: publish a run's embeddings or index a version, as a job does.

    {"do": "publish", "version": "<id of the training job>"}
    {"do": "index", "version": "<the same>", "kind": "hnsw"}       or "ivf"

Publishing reads NML_HOME/runs/<version> and makes NML_HOME/embeddings/<version>; indexing adds to that folder. What is
complete already is not made again, so a killed job can be run again. Messages contain no path of the server. The exit
code tells the kind of failure (trainer.errors).
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from service.embeddings.layout import IndexKind
from trainer.errors import InvalidInput
from trainer.process.document_command import run_document
from trainer.spec.base import Spec

Version = Annotated[str, Field(pattern=r"^[0-9a-hjkmnp-tv-z]{26}$")]
log = logging.getLogger("service.embeddings")


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
    return run_document(
        arguments, module="service.embeddings", about=__doc__, parse=TypeAdapter[Publish | Index](Order).validate_json,
        work=run, trouble="the embeddings could not be published or indexed",
    )  # fmt: skip


def run(order: Publish | Index, home: Path) -> None:
    """Do what is asked.

    Raises:
        InvalidInput: the run or the version is not there, or cannot be used.
        OutOfMemory, Infrastructure: trying again may help.
    """
    place = home / "embeddings" / order.version
    if isinstance(order, Publish):
        from service.embeddings.publish import build_version

        source = home / "runs" / order.version
        info = build_version(
            source / "embeddings", source / "spec.json", place, version=order.version, progress=Progress()
        )
        log.info("published %d vectors of %d numbers", info.rows, info.dim)
        return
    from service.embeddings.approximate import build_index
    from service.embeddings.table import Table

    try:
        table = Table.open(place)
    except FileNotFoundError as error:
        raise InvalidInput("the version no longer exists. Publish it again.") from error
    about = build_index(table, order.kind, progress=Progress())
    log.info("index %s: recall@10 %s", order.kind, about.get("recall_at_10"))


class Progress:
    """Logs progress, a line for every tenth."""

    def __init__(self) -> None:
        self._told: tuple[str, int] | None = None

    def __call__(self, what: str, share: float) -> None:
        tenth = what, int(10 * share)
        if tenth != self._told:
            self._told = tenth
            log.info("%s: %.0f %%", what, 100 * share)


if __name__ == "__main__":
    sys.exit(main())
