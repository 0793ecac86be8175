"""Every graph the trainer can be asked for by name, and one function that loads it.

Nothing heavy is imported until a graph is loaded, so `catalog` also serves processes without torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trainer.data.sources import public
from trainer.errors import InvalidInput
from trainer.process.home import nml_home
from trainer.spec.data import DataSpec, SyntheticSpec

if TYPE_CHECKING:
    from trainer.data.graph import Graph


DIGITS = (1_797, 24_678, 64, 10)  # nodes, edges, features, classes


@dataclass(frozen=True)
class DatasetInfo:
    """A line of `nml datasets`; counts are none where the user decides them. Edges count both directions."""

    name: str
    kind: Literal["builtin", "public", "generator", "files", "imported"]
    nodes: int | None
    edges: int | None
    features: int | None
    classes: int | None
    offline: bool  # loads now without a network


def load(spec: DataSpec, *, home: Path | None = None) -> Graph:
    """The graph that `spec` names, less the edges it holds out, its features prepared as `spec.features` says.

    Raises:
        InvalidInput: the user's files, features that do not suit `spec.features`, too few edges to hold some out.
        Infrastructure: a public set that is neither on disk nor to be had.
    """
    graph = LOADERS[spec.name](spec, home or nml_home())
    if spec.held_out_edges:
        from trainer.data.held_out import hold_out

        graph = hold_out(graph, spec.held_out_edges, spec.held_out_seed)
    if spec.features == "raw":
        return graph
    from trainer.data import features

    prepared = features.rownorm(graph.x) if spec.features == "rownorm" else features.zscore(graph.x)
    return replace(graph, x=prepared)


def catalog(*, home: Path | None = None) -> list[DatasetInfo]:
    """All that `load` knows, built-in sets first, imported graphs under their own names last."""
    home = home or nml_home()
    return known_everywhere(home) + [imported_info(name, home) for name in imported_names(home)]


def known_everywhere(home: Path) -> list[DatasetInfo]:
    """What every installation can be asked for: built-in and public sets, the generator, files."""
    shipped = [
        DatasetInfo("digits", "builtin", *DIGITS, True),
        DatasetInfo("synthetic", "generator", None, None, None, None, True),
        DatasetInfo("files", "files", None, None, None, None, True),
    ]
    return shipped + [
        DatasetInfo(name, "public", s.nodes, s.edges, s.features, s.classes, public.is_offline(name, home))
        for name, s in public.SETS.items()
    ]


def imported_directory(name: str, home: Path) -> Path:
    """Where `nml datasets import` keeps the graph of that name; it need not exist."""
    return home / "graphs" / name


def imported_names(home: Path) -> list[str]:
    """The graphs that have been imported, complete ones only."""
    return sorted(path.parent.name for path in (home / "graphs").glob("[!.]*/manifest.json"))


def find_imported(name: str, home: Path) -> Path:
    """The directory of an imported graph.

    Raises:
        InvalidInput: there is none of that name; says which there are.
    """
    names = imported_names(home)
    if name not in names:
        there = f"there {'are' if len(names) > 1 else 'is'} {', '.join(names)}" if names else "there are none"
        raise InvalidInput(
            f'no imported graph is called "{name}" in {home / "graphs"}; {there}. '
            f"Check the name, or run `nml datasets import {name}`."
        )
    return imported_directory(name, home)


def _digits(spec: DataSpec, home: Path) -> Graph:
    from trainer.data.sources import digits

    return digits.load()


def _synthetic(spec: DataSpec, home: Path) -> Graph:
    from trainer.data.sources import synthetic

    return synthetic.generate(spec.synthetic or SyntheticSpec())


def _files(spec: DataSpec, home: Path) -> Graph:
    from trainer.data.sources import npz, tables

    assert spec.files is not None  # DataSpec saw to it
    return tables.load(spec.files) if spec.files.npz is None else npz.load(spec.files)


def _imported(spec: DataSpec, home: Path) -> Graph:
    from trainer.data.graph import Graph

    assert spec.imported is not None  # DataSpec saw to it
    return Graph.open(find_imported(spec.imported, home), mmap=True)


def imported_info(name: str, home: Path) -> DatasetInfo:
    """From the manifest alone. Without counts, and not ready, where that is damaged or of another version."""
    try:
        manifest = json.loads((imported_directory(name, home) / "manifest.json").read_text(encoding="utf-8"))
        nodes, edges, features = (int(manifest[key]) for key in ("num_nodes", "num_edges", "num_features"))
        ready = "fingerprint" in manifest
        return DatasetInfo(name, "imported", nodes, edges, features, len(manifest["classes"]), ready)
    except (OSError, ValueError, KeyError, TypeError):
        return DatasetInfo(name, "imported", None, None, None, None, False)


def _public(spec: DataSpec, home: Path) -> Graph:
    return public.load(spec.name, home)


LOADERS: dict[str, Callable[[DataSpec, Path], Graph]] = {
    "digits": _digits,
    "synthetic": _synthetic,
    "files": _files,
    "imported": _imported,
    **dict.fromkeys(public.SETS, _public),
}
