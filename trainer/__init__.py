"""Graph contrastive learning with a learned negative metric.

    found = trainer.fit((nodes, edges))              a graph in memory: frames, PyG, scipy, networkx
    found.vectors, found.neighbors("alice", 5)

    spec = trainer.preset_spec("nml", "cora")        or trainer.parse_spec({...})
    found = trainer.fit(spec, "runs/cora")           the same later: trainer.Embeddings.open("runs/cora")
    vectors = trainer.embed("runs/cora", trainer.load(spec.data))

Importing the package loads no torch; using most of these names does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.config import TrainSpec as TrainSpec
    from trainer.config import parse_spec as parse_spec
    from trainer.data.datasets import load as load
    from trainer.data.graph import Graph as Graph
    from trainer.evaluation.evaluate import evaluate_run as evaluate_run
    from trainer.export.embed import embed as embed
    from trainer.export.embeddings import read_embeddings as read_embeddings
    from trainer.interactive.embeddings import Embeddings as Embeddings
    from trainer.interactive.estimator import NodeEmbedder as NodeEmbedder
    from trainer.interactive.fit import fit as fit
    from trainer.loss import nml_loss as nml_loss
    from trainer.presets import preset_spec as preset_spec
    from trainer.process.version import version as version

_HOMES = {
    "Embeddings": "trainer.interactive.embeddings", "Graph": "trainer.data.graph",
    "NodeEmbedder": "trainer.interactive.estimator", "TrainSpec": "trainer.config",
    "embed": "trainer.export.embed", "evaluate_run": "trainer.evaluation.evaluate", "fit": "trainer.interactive.fit",
    "load": "trainer.data.datasets", "nml_loss": "trainer.loss", "parse_spec": "trainer.config",
    "preset_spec": "trainer.presets", "read_embeddings": "trainer.export.embeddings",
    "version": "trainer.process.version",
}  # fmt: skip
__all__ = [
    "Embeddings", "Graph", "NodeEmbedder", "TrainSpec", "embed", "evaluate_run", "fit", "load", "nml_loss",
    "parse_spec", "preset_spec", "read_embeddings", "version",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'trainer' has no attribute {name!r}")
