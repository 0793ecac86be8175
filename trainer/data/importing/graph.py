"""Any source a spec can name, turned into a graph on disk that opens memory-mapped.

Tables go through in bounded memory, whatever their size. Everything else is loaded and saved.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace as replaced
from pathlib import Path

import pyarrow as pa
from pydantic import ValidationError

from trainer.data import datasets
from trainer.data.importing.budget import LEAST_MEMORY, MEMORY, Budget, DiskLimit
from trainer.data.importing.edges import spread_edges
from trainer.data.importing.nodes import import_nodes
from trainer.data.seal import Progress, seal
from trainer.data.sources.tables import open_tables
from trainer.errors import Infrastructure, InvalidInput
from trainer.files.whole_directory import sole_writer, whole_directory
from trainer.process.home import nml_home
from trainer.spec.data import DataSpec, FilesSpec


def import_graph(
    spec: DataSpec,
    name: str,
    *,
    home: Path | None = None,
    replace: bool = False,
    memory: int = MEMORY,
    disk: DiskLimit | None = None,
    progress: Progress | None = None,
) -> Path:
    """Store the graph of `spec` under `name`, for specs that say data.name=imported. Returns its directory.

    Args:
        memory: bytes for buffers while tables are read; on top come 16 to 40 bytes per node. Changes no result.
        disk: what may be written; none: as much as there is room for.
        progress: told what is done and how far, now and then.

    Raises:
        InvalidInput: the source, the name, or `name` is taken and `replace` is false; more than `disk` allows.
        Infrastructure: no space, or another process imports to the same name.
    """
    place = datasets.imported_directory(_checked(name), home or nml_home())
    if spec.features != "raw":
        raise InvalidInput("features are prepared when a graph is loaded: set data.features in the spec of the run.")
    if memory < LEAST_MEMORY:
        raise InvalidInput(f"{memory} bytes of memory are too few; give at least {LEAST_MEMORY}.")
    files = spec.files if spec.files is not None and spec.files.npz is None else None
    try:
        with sole_writer(place):
            if place.exists() and not replace:  # before anything is read
                raise FileExistsError
            if files is None:
                from trainer.data import store  # loads torch, which tables do without

                store.save(replaced(datasets.load(spec, home=home), name=name), place, replace=replace)
            else:
                import_tables(files, place, replace=replace, budget=Budget.of(memory), disk=disk, progress=progress)
    except FileExistsError as error:
        raise InvalidInput(f"a graph {name} is already imported ({place}). Use --replace, or another name.") from error
    except OSError as error:
        raise Infrastructure(
            f"{name} was not imported: {error}. Nothing is left of it; see that the disk of {place.parent} has room."
        ) from error
    return place


def import_tables(
    spec: FilesSpec,
    place: Path,
    *,
    replace: bool = False,
    budget: Budget | None = None,
    disk: DiskLimit | None = None,
    progress: Progress | None = None,
) -> None:
    """Tables of any size into a graph at `place`: the arrays of `trainer.data.sources.tables.load`, without its memory.

    Raises:
        InvalidInput: as `tables.load`; more than `disk` allows.
        FileExistsError: there already is something at `place`, and `replace` is false.
    """
    budget, disk = budget or Budget(), disk or DiskLimit()
    with whole_directory(place, replace=replace) as directory, _frugal_arrow():

        def tell(what: str, share: float) -> None:
            """After every block."""
            disk.check(directory)
            if progress is not None:
                progress(what, share)

        tables = open_tables(spec)
        if not tables.features:  # structural ones need the whole graph in memory
            raise InvalidInput(
                f"{tables.nodes.path}, row 1: no feature columns. Add at least one column of numbers; only a graph "
                "that is trained from files or memory gets structural ones."
            )
        scratch = directory / "scratch"
        scratch.mkdir()
        nodes = import_nodes(tables, spec, directory, scratch, budget, lambda share: tell("nodes", share))
        classes = nodes.classes
        sorter, notes = spread_edges(tables, spec, nodes, scratch, budget, lambda share: tell("edges", share))
        del nodes  # with the index of ids: sorting needs the memory
        pa.default_memory_pool().release_unused()
        notes += sorter.write(directory, lambda share: tell("sorting edges", share))
        shutil.rmtree(scratch)
        disk.check_complete(directory)
        seal(
            directory, name=place.name, num_features=tables.num_features, classes=classes, notes=notes,
            progress=progress,
        )  # fmt: skip


@contextmanager
def _frugal_arrow() -> Iterator[None]:
    """Arrow's own allocators keep much of what was freed; the system's gives it back, which a budget is about."""
    usual = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(usual)


def _checked(name: str) -> str:
    try:
        DataSpec(name="imported", imported=name)
    except ValidationError as error:
        raise InvalidInput(
            f'"{name}" cannot name a graph: use up to 100 letters, digits, dots, dashes and underscores, '
            "beginning with a letter or digit."
        ) from error
    return name
