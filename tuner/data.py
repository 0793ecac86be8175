"""One graph for all trials: written once, opened memory-mapped by each, so that its pages are shared and not copied."""

from __future__ import annotations

import os
from pathlib import Path

from trainer.data.datasets import find_imported, load
from trainer.data.graph import Graph
from trainer.data.store import save
from trainer.errors import InvalidInput
from trainer.evaluation.splits import NoSplit, choose_split
from trainer.files.whole_directory import sole_writer
from trainer.process.home import nml_home
from tuner.config import SweepSpec, split_seed, trial_spec


def shared_graph(sweep: Path) -> Path:
    """Where the trials of a sweep find their graph."""
    return sweep / "graph"


def prepare(spec: SweepSpec, sweep: Path) -> Graph:
    """Put the graph where trials find it, unless it is there from before, and open it.

    An imported graph that trials see as it is is only linked to: it is memory-mapped already.

    Raises:
        InvalidInput: the graph cannot be used, or has no labels and the objective needs them.
        Infrastructure: a public data set that cannot be had.
    """
    place, data = shared_graph(sweep), trial_spec(spec, {}).data
    if not place.exists():
        place.unlink(missing_ok=True)  # a link to a graph that was moved
        if data.name == "imported" and data.features == "raw" and not data.held_out_edges:
            assert data.imported is not None
            os.symlink(find_imported(data.imported, nml_home()).resolve(), place)
        else:
            graph = load(data)
            _check_objective(spec, graph)  # before the time it takes to write it
            with sole_writer(place):  # which clears away what a killed driver left
                save(graph, place)
    graph = Graph.open(place, mmap=True)
    _check_objective(spec, graph)
    return graph


def _check_objective(spec: SweepSpec, graph: Graph) -> None:
    if spec.objective != "val_accuracy":
        return
    reason = "it has no labels"
    if graph.y is not None:
        try:
            choose_split(graph.y, graph.split, spec.base.evaluation.protocol, split_seed(spec))
            return
        except NoSplit as error:
            reason = str(error)
    raise InvalidInput(
        f"{spec.base.data.name}: objective val_accuracy needs labels, and {reason}. "
        "Set objective to link_auc, which judges by held-out edges, or to i_nml."
    )
