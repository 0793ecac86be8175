"""The end of a run: export, judge, draw, and write metrics.json last: its presence means the run is complete.

With `run.export` false there is nothing but metrics.json, whose "eval" is then null. The same run resumed with it true
exports and judges from its last checkpoint.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from trainer.config import TrainSpec
from trainer.data.graph import Graph
from trainer.data.seeds import generator
from trainer.export.embed import embed_in_memory
from trainer.export.embeddings import export_embeddings
from trainer.files.atomic import write_json
from trainer.nn.encoder import Encoder
from trainer.planning.memory import peak_rss
from trainer.process.version import version
from trainer.training.recorder import Recorder

COMPARED_UP_TO = 20_000  # nodes; beyond, figures do not show the untrained encoder, which would cost a second export


def finish(recorder: Recorder, encoder: Encoder, graph: Graph, *, early: bool, started: float) -> None:
    """Turn a trained encoder into embeddings, figures and metrics; without `run.export`, into metrics alone.

    Raises:
        Cancelled: stopped on request; a resumed run goes on where the export was.
    """
    run, plan = recorder.run, recorder.plan
    spec, history = plan.spec, run.history()
    epoch = history[-1]["epoch"]
    provenance = {"dataset": spec.data.name, "spec_hash": plan.name, "epoch": epoch, "version": version()}

    def phase(name: str) -> None:
        if recorder.asked_to("cancel"):
            recorder.cancel(epoch, f"before phase {name}")
        recorder.emit("phase", name=name, epoch=epoch)

    def progress(done: int, total: int) -> None:
        if recorder.asked_to("cancel"):
            recorder.cancel(epoch, f"with {done} of {total} rows exported")
        recorder.emit_sometimes("exported", epoch=epoch, done=done, total=total)

    quality = None
    if spec.run.export:
        phase("export")
        fingerprint = graph.fingerprint()
        vectors_file = export_embeddings(
            run.path / "embeddings", encoder, graph, graph_sha256=fingerprint, progress=progress, **provenance
        )
        recorder.stages.end("export")
        vectors = np.load(vectors_file, mmap_mode="r")
        phase("evaluate")
        from trainer.evaluation.evaluate import evaluate  # scikit-learn, and pandas with it: a second of processor time

        quality = evaluate(
            vectors, y=graph.y, public_split=graph.split, spec=spec.evaluation, seed=spec.run.seed, graph=graph,
            link_seed=spec.data.held_out_seed,
        )  # fmt: skip
        recorder.stages.end("evaluate")
        if spec.evaluation.figures:
            phase("figures")
            from trainer.evaluation.figures import draw_all  # matplotlib

            before = _untrained(spec, graph, fingerprint) if graph.num_nodes <= COMPARED_UP_TO else None
            draw_all(
                run.path / "figures", history=history, before=before, after=vectors, y=graph.y, classes=graph.classes
            )
            recorder.stages.end("figures")
    metrics: dict[str, Any] = {
        **provenance, "preset": spec.preset, "seed": spec.run.seed, "nodes": graph.num_nodes, "edges": graph.num_edges,
        "plan": {"reason": plan.reason, "sampling": spec.sampling.model_dump(mode="json")},
        "train": history[-1]["metrics"], "train_seconds": sum(event["metrics"]["seconds"] for event in history),
        "train_cpu_seconds": sum(event["metrics"]["cpu_seconds"] for event in history),
        "seconds": time.perf_counter() - started, "peak_rss_mb": peak_rss() / 2**20,
        "estimated_mb": plan.memory.total / 2**20, "stopped_early": early, "eval": quality,
    }  # fmt: skip
    write_json(run.path / "metrics.json", metrics)
    recorder.emit("end", epoch=epoch, stopped_early=early)


def _untrained(spec: TrainSpec, graph: Graph, fingerprint: str) -> np.ndarray:
    """Embeddings before the first step: from the seed alone, so a resumed run draws the same figure."""
    encoder = Encoder(graph.num_features, spec.encoder, generator=generator(spec.run.seed, "encoder"))
    return embed_in_memory(encoder, graph, graph_digest=fingerprint)
