"""Which graph a spec means, settled when a job is submitted: a bare name becomes the version it stands for by then.

So a stored spec names something that never changes, and a job that is retried tomorrow trains on what it did today.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from service.datasets.catalog import find_uploaded
from service.datasets.identity import split_ref
from service.settings import Settings
from service.store import Store
from service.store.records import Dataset
from trainer.data.datasets import imported_names
from trainer.errors import InvalidInput
from trainer.planning.shape import GraphShape, shape_of_data
from trainer.spec.data import DataSpec

_SHOWN = 10  # names told when one is not found


@dataclass(frozen=True)
class Resolved:
    """A graph that is there, or will be downloaded when the job starts."""

    data: DataSpec  # names an immutable version, where there are versions
    ref: str  # what the job is filed under
    is_uploaded: bool
    classes: int  # 0: it has no labels
    shape: GraphShape


def resolve(data: DataSpec, store: Store, settings: Settings) -> Resolved:
    """The graph that `data` means now. Cheap: reads a row and a manifest, loads nothing.

    Raises:
        InvalidInput: one line that begins with the field: there is no such graph, it is not ready, or it is a file.
        Unavailable: the database does not answer.
    """
    if data.name == "files":
        raise InvalidInput(
            "data.files: a job cannot read files of this machine. Upload them to /v1/datasets, then set "
            "data.name=imported and data.imported to the name"
        )
    ref, is_uploaded = str(data.name), False
    if data.imported is not None:
        ref, is_uploaded = _version(data.imported, store, settings)
        data = data.model_copy(update={"imported": ref})
    try:
        shape = shape_of_data(data, home=settings.home)
    except InvalidInput as error:  # names paths of this machine
        raise InvalidInput("data.imported: the stored graph is damaged or gone. Upload or import it anew") from error
    return Resolved(data, ref, is_uploaded, shape.classes, shape)


def _version(name: str, store: Store, settings: Settings) -> tuple[str, bool]:
    """What `name` stands for, an uploaded version that is ready or an imported graph, and whether it was uploaded."""
    row = find_uploaded(name, store, settings)
    if row is not None:
        _refuse_unready(row, name)
        return row.ref, True
    if (settings.graphs / name / "manifest.json").is_file():
        return name, False
    there = list(islice(_names(store, settings), _SHOWN + 1))
    more = " and more" if len(there) > _SHOWN else ""
    listed = f"there {'is' if len(there) == 1 else 'are'} {', '.join(there[:_SHOWN])}{more}" if there else "none is"
    raise InvalidInput(f"data.imported: no data set of this name has been uploaded or imported; {listed}")


def _refuse_unready(row: Dataset, name: str) -> None:
    if row.state == "checking":
        raise InvalidInput(f"data.imported: {row.ref} is still being checked. Wait until its state is ready")
    if row.state == "failed":
        which = row.ref if name == row.ref else f"{row.ref}, its newest version,"
        why = " ".join((row.failure or "").split())
        raise InvalidInput(f"data.imported: {which} was refused and cannot be used: {why}")


def _names(store: Store, settings: Settings) -> list[str]:
    """Names that would do, uploaded ones first."""
    rows, _ = store.datasets.list(limit=100)
    uploaded = dict.fromkeys(row.name for row in rows if row.state == "ready")
    return [*uploaded, *(name for name in imported_names(settings.home) if split_ref(name) is None)]
