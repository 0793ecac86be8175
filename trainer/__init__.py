"""Graph contrastive learning with a learned negative metric.

    spec = trainer.preset_spec("nml", "cora")        or trainer.parse_spec({...})
    result = trainer.fit(spec, "runs/cora")
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
    from trainer.loop import fit as fit
    from trainer.loss import nml_loss as nml_loss
    from trainer.presets import preset_spec as preset_spec
    from trainer.process.version import version as version

_HOMES = {
    "Graph": "trainer.data.graph", "TrainSpec": "trainer.config", "embed": "trainer.export.embed",
    "evaluate_run": "trainer.evaluation.evaluate", "fit": "trainer.loop", "load": "trainer.data.datasets",
    "nml_loss": "trainer.loss", "parse_spec": "trainer.config", "preset_spec": "trainer.presets",
    "read_embeddings": "trainer.export.embeddings", "version": "trainer.process.version",
}  # fmt: skip
__all__ = [
    "Graph", "TrainSpec", "embed", "evaluate_run", "fit", "load", "nml_loss", "parse_spec", "preset_spec",
    "read_embeddings", "version",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'trainer' has no attribute {name!r}")
