"""`trainer.fit`: train a spec, or a graph that is in memory, and get its embeddings as an object.

There is one way to train. A graph in memory is written into the run directory as graph.npz, and the spec then names
this file, so that a run can be resumed, evaluated and opened like any other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer import loop
from trainer.callbacks import Callback
from trainer.config import TrainSpec, parse_spec
from trainer.data.graph import Graph
from trainer.data.sources import npz
from trainer.data.sources.memory import feature_names, graph_of
from trainer.errors import InvalidInput
from trainer.files.atomic import write_atomically
from trainer.interactive.embeddings import Embeddings
from trainer.presets import complete
from trainer.run.directory import GRAPH_FILE, is_unused
from trainer.spec.data import FilesSpec


def fit(
    data: Any,
    run_dir: str | Path | None = None,
    *,
    spec: TrainSpec | Mapping[str, Any] | str | None = None,
    ids: Any = None,
    labels: Any = None,
    directed: bool | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    graph: Graph | None = None,
    memory_limit: int | None = None,
    shrunk: int = 0,
) -> Embeddings:
    """Train, and leave everything in a run directory.

        found = trainer.fit((nodes, edges))                       # frames of pandas, polars or Arrow
        found = trainer.fit(data, spec="grace")                   # a Data of PyG, with the preset of a method
        found = trainer.fit((matrix, x), "runs/mine", spec={"optimiser": {"epochs": 50}})
        found = trainer.fit(trainer.preset_spec("nml", "cora"), "runs/cora")

    Args:
        data: a spec, or a graph in memory: a PyG `Data`, a pair of frames (nodes, edges), a sparse matrix of scipy or
            (matrix, x), (edge_index, x), a networkx graph or a `trainer.Graph`; see trainer.data.sources.memory.
        run_dir: where the run is kept; none: in a temporary directory, for as long as what is returned lives.
        spec: how a graph in memory is trained: a preset's name, a document that the presets complete, or a whole spec,
            also one made for another data set; none: the preset `nml`.
        ids, labels: [N], where the graph does not bring its own. Labels may be id → label as well, and are used to
            evaluate only.
        directed: whether an edge of a graph in memory counts in one direction only.
        resume: go on with the run in `run_dir`, or start it if there is none.
        graph: with a spec: use this graph instead of loading what the spec names; the caller vouches that they are the
            same.
        memory_limit: bytes to plan with; none: most of the machine's or container's.
        shrunk: how often the kernel has killed this run for want of memory, see `trainer.loop.fit`.

    Raises:
        TrainerError: of the kind that says what to do (trainer.errors).
    """
    temporary = tempfile.TemporaryDirectory(prefix="nml-") if run_dir is None else None
    directory = Path(temporary.name) / "run" if temporary is not None else Path(str(run_dir)).absolute()
    given_ids, names = None, None
    if isinstance(data, TrainSpec):
        if any(part is not None for part in (spec, ids, labels, directed)):
            raise InvalidInput("a spec says all about its graph; spec, ids, labels and directed go with one in memory.")
        asked = data
    else:
        if graph is not None:
            raise InvalidInput("there are two graphs: give `graph` with a spec only.")
        in_memory, given_ids = graph_of(data, ids=ids, labels=labels, directed=directed)
        names = feature_names(data)
        file = directory / GRAPH_FILE
        asked = _spec_of(spec, file, in_memory, draws=temporary is None)
        _keep(in_memory, file)
    result = loop.fit(
        asked, directory, resume=resume, callbacks=callbacks, graph=graph, memory_limit=memory_limit, shrunk=shrunk
    )
    return Embeddings.of(result, given_ids=given_ids, graph=graph, feature_names=names, temporary=temporary)


def _spec_of(given: TrainSpec | Mapping[str, Any] | str | None, file: Path, graph: Graph, *, draws: bool) -> TrainSpec:
    """What is trained: as asked, on the file. draws: whether figures are wanted where the spec does not say."""
    source = {"name": "files", "files": _files(file, graph).model_dump(mode="json")}
    if isinstance(given, TrainSpec):
        return parse_spec(_on(source, given.model_dump(mode="json")))
    document = {} if given is None else {"preset": given} if isinstance(given, str) else dict(given)
    document = complete(_on(source, document))
    if isinstance(document.get("evaluation", {}), dict):
        document["evaluation"] = {"figures": draws, **document.get("evaluation", {})}
    return parse_spec(document)


def _files(file: Path, graph: Graph) -> FilesSpec:
    return FilesSpec(npz=str(file), directed=graph.is_directed())


def _on(source: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """The document with another graph; how its features are prepared stays."""
    data = document.get("data") or {}
    if not isinstance(data, Mapping):
        return document
    kept = {key: value for key, value in data.items() if key not in ("name", "files", "synthetic", "imported")}
    return {**document, "data": {**kept, **source}}


def _keep(graph: Graph, file: Path) -> None:
    """Write the graph where the spec names it, unless it is there already, or a run or other files are.

    Raises:
        InvalidInput: what is there is another graph, or has other labels.
    """
    if file.exists():
        if not _same(npz.load(_files(file, graph)), graph):
            raise InvalidInput(f"{file}: is another graph. Choose another directory.")
    elif not file.parent.exists() or is_unused(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, lambda path: npz.save(graph, path))


def _same(a: Graph, b: Graph) -> bool:
    """Whether two graphs give the same embeddings and the same figures."""
    splits = [{part: nodes.tolist() for part, nodes in (graph.split or {}).items()} for graph in (a, b)]
    return (
        a.fingerprint() == b.fingerprint()
        and np.array_equal(_class_names(a), _class_names(b))
        and splits[0] == splits[1]
    )


def _class_names(graph: Graph) -> NDArray[Any]:
    """[N] text, empty where a node has none; [0] for a graph without labels."""
    names = np.array([*graph.classes, ""], dtype=np.str_)
    return names[:0] if graph.y is None else names[graph.y.numpy()]  # -1: the last
