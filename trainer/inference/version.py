"""A published version, ready to compute with: its encoder, and the graph that it was trained on.

version.json  spec.json  encoder.safetensors     in the version's folder
the graph                                        where the spec says, as for training (NML_HOME, NML_DATA)
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config import TrainSpec, parse_spec
from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.data.sources import public
from trainer.errors import Infrastructure, InvalidInput, TrainerError
from trainer.export.embeddings import ENCODER_FILE, read_encoder
from trainer.export.layerwise import model_digest
from trainer.files.documents import read_document
from trainer.inference.features import Preparation, standardisation
from trainer.nn.encoder import Encoder
from trainer.process.home import nml_home
from trainer.spec.data import DataSpec

KEPT = 2  # versions in memory at a time


@dataclass(frozen=True)
class Version:
    """What `open_version` read."""

    encoder: Encoder
    graph: Graph
    preparation: Preparation


class Versions:
    """The versions that were asked for last; a version never changes, so neither does what is kept of it."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, Version] = OrderedDict()

    def get(self, directory: Path) -> Version:
        """See `open_version`. Before a further one is opened, the one asked for longest ago is forgotten."""
        if directory not in self._open:
            while len(self._open) >= KEPT:
                self._open.popitem(last=False)
            self._open[directory] = open_version(directory)
        self._open.move_to_end(directory)
        return self._open[directory]


def open_version(directory: Path) -> Version:
    """Read encoder and graph, and make sure that they are the ones the vectors were made with.

    Raises:
        Infrastructure: the graph or the version's files are not there any more, or are others.
        InvalidInput: the version was published without its encoder, or holds a part of the graph only.
    """
    about, spec = _documents(directory)
    if not (directory / ENCODER_FILE).is_file():
        raise InvalidInput("this version was published without its encoder. Train again to embed new nodes.")
    try:
        encoder = read_encoder(directory / ENCODER_FILE, spec.encoder)
    except InvalidInput as error:
        raise Infrastructure("the encoder of this version is damaged. Publish it again.") from error
    if model_digest(encoder) != about["export"]["model_sha256"]:
        raise Infrastructure("the encoder of this version is not the one its vectors were made with. Publish it again.")
    graph = _graph(spec.data, about["export"]["graph_sha256"])
    if about["rows"] != graph.num_nodes:
        raise InvalidInput(
            f"this version holds {about['rows']} of the {graph.num_nodes} nodes of its graph. Export all of them."
        )
    return Version(encoder, graph, preparation_of(spec.data, graph))


def _documents(directory: Path) -> tuple[dict[str, Any], TrainSpec]:
    try:
        about = json.loads((directory / "version.json").read_text(encoding="utf-8"))
        made_of = (about["export"]["graph_sha256"], about["export"]["model_sha256"])
        if not all(isinstance(digest, str) for digest in made_of) or not isinstance(about["rows"], int):
            raise ValueError("version.json does not say which graph and encoder it was made of")
        return about, parse_spec(read_document(directory / "spec.json"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Infrastructure("the files of this version cannot be read. Publish it again.") from error


def _graph(spec: DataSpec, expected: str) -> Graph:
    """The graph, from this machine's disk alone: a request that is waited for downloads nothing."""
    name = spec.imported or spec.name
    if spec.name in public.SETS and not public.is_offline(spec.name, nml_home()):
        raise Infrastructure(
            f"the graph this version was trained on is not on this machine (data set {name}). Train on it here once, "
            "or set NML_DATA to a folder that has it."
        )
    gone = f"the graph this version was trained on is no longer there (data set {name}): upload it again"
    try:
        graph = load(spec)
    except (TrainerError, OSError) as error:
        raise Infrastructure(gone) from error
    if graph.fingerprint() != expected:
        raise Infrastructure(f"{gone}. What is there under that name is another graph")
    return graph


def preparation_of(spec: DataSpec, graph: Graph) -> Preparation:
    """How features of new nodes are prepared; graph: as `load(spec)` gives it."""
    sparse = graph.x.is_sparse_csr
    if spec.features != "zscore":
        return Preparation(spec.features, graph.num_features, sparse)
    raw = load(spec.model_copy(update={"features": "raw"}))  # the prepared features no longer tell their means
    return Preparation("zscore", graph.num_features, sparse, *standardisation(raw.x))
