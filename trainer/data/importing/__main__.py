"""`python -m trainer.data.importing SPEC.json`: import an upload with no terminal, as a service's job does.

    {"ref": "papers.0123456789ab", "upload": "<folder below NML_HOME/uploads>",
     "parts": {"nodes": "nodes.csv", "edges": "edges.parquet"},    or {"npz": "graph.npz"}
     "options": {"id_column": "doi"},                               fields of data.files
     "memory_mb": 256,
     "max_bytes": 1000000000, "min_free_bytes": 200000000}          on disk: of the graph, and left over

The graph appears in NML_HOME/graphs/<ref>, with about.json (trainer.data.importing.about) beside its manifest; where it
is already, nothing is done, so that a killed import can be run again. Messages name the parts, never a server's path,
and call the options what a client calls them. The exit code tells the kind of failure (trainer.errors).
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from trainer.data.manifest import read_manifest
from trainer.errors import Infrastructure, InvalidInput, OutOfMemory, TrainerError
from trainer.files.atomic import write_json
from trainer.process.document_command import run_document
from trainer.spec.base import Spec, explain
from trainer.spec.data import DataSpec, FilesSpec

ABOUT = "about.json"
FileName = Annotated[str, StringConstraints(pattern=r"^(graph\.npz|(nodes|edges)\.(csv|parquet))$")]
log = logging.getLogger("trainer.data.importing")


class ImportSpec(Spec):
    """What to import."""

    ref: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    upload: str = Field(pattern=r"^[0-9a-z]{1,64}$")
    parts: dict[str, FileName]
    options: dict[str, Any] = Field(default_factory=dict)
    memory_mb: int = Field(256, ge=64, le=1_000_000)
    max_bytes: int | None = Field(None, ge=0)
    min_free_bytes: int = Field(0, ge=0)


def main(arguments: list[str] | None = None) -> int:
    """Parse, import, and return the exit code."""
    return run_document(
        arguments, module="trainer.data.importing", about=__doc__, parse=ImportSpec.model_validate_json, work=run,
        trouble="the import failed", reword=lambda message: message.replace("data.files.", "options."),
    )  # fmt: skip


def run(spec: ImportSpec, home: Path) -> None:
    """Import unless it is there, then describe. Changes the working directory, so that messages hold no path.

    Raises:
        InvalidInput: the upload cannot be used, or is not there.
        OutOfMemory, Infrastructure: trying again may help.
    """
    place = home / "graphs" / spec.ref
    if not _is_complete(place):
        try:
            os.chdir(home / "uploads" / spec.upload)
        except FileNotFoundError as error:
            raise InvalidInput("the uploaded files are gone. Upload them again.") from error
        _import(spec, home)
    if not (place / ABOUT).exists():
        from trainer.data.importing.about import describe

        for left in place.glob(f".{ABOUT}.*.tmp"):  # by an attempt that was killed
            left.unlink(missing_ok=True)
        write_json(place / ABOUT, describe(place))


def _import(spec: ImportSpec, home: Path) -> None:
    try:
        data = DataSpec(name="files", files=FilesSpec.model_validate(spec.options | spec.parts))
    except ValidationError as error:
        raise InvalidInput(f"options: {explain(error)}") from error
    from trainer.data.importing.budget import DiskLimit, no_room
    from trainer.data.importing.graph import import_graph

    disk = DiskLimit(spec.max_bytes, spec.min_free_bytes)
    try:
        import_graph(data, spec.ref, home=home, replace=True, memory=spec.memory_mb << 20, disk=disk, progress=_tell)
    except Infrastructure as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_room() from error
        raise
    except (TrainerError, OSError):
        raise
    except MemoryError as error:
        file = spec.parts.get("npz")
        if file is None:
            raise OutOfMemory(f"memory ran out while the tables were imported ({error})") from error
        raise InvalidInput(
            f"{file}: does not fit in memory. Save features sparse (attr_*), or give the graph as Parquet tables."
        ) from error
    except Exception as error:  # the file is a stranger's: what its reader did not foresee will not go away by itself
        log.exception("the import failed")
        first = next(iter(spec.parts.values()))
        raise InvalidInput(f"{first}: cannot be read ({type(error).__name__}: {error}). Write it anew.") from error


def _is_complete(place: Path) -> bool:
    try:
        read_manifest(place)
    except InvalidInput:
        return False
    return True


def _tell(what: str, share: float) -> None:
    log.info("%s: %.0f %%", what, 100 * share)


if __name__ == "__main__":
    sys.exit(main())
