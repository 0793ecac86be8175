"""How much memory a run will need, part by part, before it starts (`nml estimate`).

Each function counts the arrays of the module it names, in the state where that module holds most. What cannot be
counted (the interpreter, what malloc keeps) was measured; tests compare the sum with real runs, within a factor of 1.5.

    all the time            runtime, graph, features
    from the first step on  optimiser, tables, views, tiles: export and evaluation find them there
    one after the other     loading | encoding + contrast | export | evaluation

Export and evaluation count whether or not `run.export` asks for them, so that a trial of a sweep is planned like
the run that trains the same and exports. Watching needs no more than they do.

Everything is for one process; with `run.workers` each of them needs this much. It is the computer's memory: on a GPU,
what training takes beside graph and features is needed there instead.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from trainer.config import TrainSpec
from trainer.methods.interface import StepSize
from trainer.planning.reach import Reach, contrasted, reached, scope_of
from trainer.planning.shape import GraphShape

MB = 2**20
ALWAYS = ("runtime", "graph", "features")
TRAINED = ("optimiser", "tables", "views", "tiles")
PHASES = {
    "loading": ("loading",),
    "training": (*TRAINED, "encoding", "contrast"),
    "exporting": (*TRAINED, "export"),
    "evaluating": (*TRAINED, "evaluation"),
}

# Measured: resident bytes of a run on a graph of 1,000 nodes, less what the formulas below give for it.
_LIBRARIES = 550 * 10**6  # the interpreter with torch, scikit-learn and matplotlib, after a first step
_SAMPLER = 20 * 10**6  # torch_geometric, where there are batches
_TRACKER = 100 * 10**6  # MLflow with its database
_TEAM = 150 * 10**6  # Ray and torch.distributed, where there are several workers; by their imports alone

_FRAGMENTS = 1.25  # what malloc does not give back between steps where arrays are below 32 MB; 1.0 to 1.4 measured
_COMPARED_UP_TO = 20_000  # nodes, trainer.training.finish
_DRAWN_PAIRS = 10_000  # nodes, trainer.evaluation.figures
_FULL_KMEANS = 20_000  # nodes, trainer.evaluation.clustering
_LINK_PAIRS = 100_000  # of held-out edges, trainer.evaluation.links
_EXPORT = 256 * MB  # trainer.export.layerwise
_SPARSE_COST = 16  # trainer.nn.encoder


@dataclass(frozen=True)
class Estimate:
    """Bytes by part; `total` is the peak of one process, as phases follow each other."""

    parts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.get(name, 0) for name in ALWAYS) + self.need(self.peak)

    @property
    def peak(self) -> str:
        """The phase that needs most."""
        return max(PHASES, key=self.need)

    @property
    def largest(self) -> str:
        """The part that dominates the peak, the runtime apart."""
        counted = (*ALWAYS[1:], *PHASES[self.peak])
        return max(counted, key=lambda name: self.parts.get(name, 0))

    def held(self, part: str) -> str:
        """When a part is in memory, for people."""
        if part in ALWAYS:
            return "all the time"
        if part in TRAINED:
            return "from the first step on"
        return next(f"while {phase}" for phase, parts in PHASES.items() if part in parts)

    def need(self, phase: str) -> int:
        """Bytes of a phase beside what is there all the time."""
        return sum(self.parts.get(name, 0) for name in PHASES[phase])

    def document(self) -> dict[str, Any]:
        return {
            "total": self.total, "peak": self.peak, "largest": self.largest, "parts": self.parts,
            "held": {part: self.held(part) for part in self.parts},
        }  # fmt: skip


def estimate(spec: TrainSpec, shape: GraphShape) -> Estimate:
    """Bytes a planned spec (nothing open but batch_size, None for the whole graph) needs on a graph of this shape."""
    sampling = spec.sampling
    whole = sampling.batch_size is None
    reach = reached(spec, shape)
    views = _whole_views(spec, shape) if whole else _batch_views(spec, shape, reach)
    size, method = _step_size(spec, shape), spec.method
    encoding = _FRAGMENTS * _activations(spec, shape, reach) if method.learns else 0.0
    contrast = _FRAGMENTS * method.step_bytes(size)
    if not whole and sampling.negatives == "graph":
        # trainer.encoding.cached: U and V stay; their gradients are alive while a batch is encoded again.
        tables = 2 * size.rows * size.dim * _width(spec)
        contrast = tables + max(contrast - encoding, tables)
    parts = {
        "runtime": _runtime(spec),
        "graph": _graph(spec, shape),
        "features": 0 if shape.mapped and spec.data.features == "raw" and not whole else _features(shape),
        # weights, gradients, Adam's two moments; and what a step makes on the way for one of them at a time
        "optimiser": 6 * size.number * (size.parameters + method.parameters(size)),
        "tables": method.state_bytes(size),
        "views": views,
        "tiles": method.tile_bytes(size),
        "loading": shape.loading,
        "encoding": encoding,
        "contrast": contrast,
        "export": _export(spec, shape),
        "evaluation": _evaluation(spec, shape),
    }
    return Estimate({name: round(size) for name, size in parts.items()})


def _runtime(spec: TrainSpec) -> int:
    sampler = _SAMPLER if spec.sampling.batch_size is not None else 0
    return _LIBRARIES + sampler + _TRACKER * spec.run.track + _TEAM * (spec.run.workers > 1)


def _graph(spec: TrainSpec, shape: GraphShape) -> float:
    """trainer.data.graph: indptr, indices, labels, ids; weights where there are any.

    Of a mapped graph nothing, unless edges are held out: then what is left of its edges is in memory.
    """
    share = spec.data.held_out_edges
    if shape.mapped and not share:
        return 0
    edges = 8 * shape.nodes + (12 if shape.weighted else 8) * shape.edges + 16 * _held_out(spec, shape)
    return edges if shape.mapped else edges + (8 + shape.id_bytes) * shape.nodes


def _held_out(spec: TrainSpec, shape: GraphShape) -> float:
    """trainer.data.held_out: pairs kept aside, where each has an edge in both directions."""
    share = spec.data.held_out_edges
    return shape.edges / 2 * share / (1 - share)


def _features(shape: GraphShape) -> int:
    """trainer.data.features: float32, dense or CSR with 64-bit indices."""
    if shape.nonzeros is None:
        return 4 * shape.nodes * shape.features
    return 8 * shape.nodes + 12 * shape.nonzeros


def _step_size(spec: TrainSpec, shape: GraphShape) -> StepSize:
    rows, columns = contrasted(spec, shape)
    encoder = sum(narrow * wide + wide for narrow, wide in itertools.pairwise(_widths(spec, shape)))
    return StepSize(
        nodes=shape.nodes, edges=shape.edges, features=shape.features, rows=rows, columns=columns,
        dim=_widths(spec, shape)[-1], number=_width(spec), parameters=encoder, tile=spec.sampling.tile or 0,
        keep=(spec.sampling.keep_mb or 0) * MB, scope=scope_of(spec.sampling), workers=spec.run.workers,
        diagnoses=spec.run.diagnose_every > 0,
    )  # fmt: skip


def _whole_views(spec: TrainSpec, shape: GraphShape) -> float:
    """trainer.nn.views.Propagation and the two views drawn from it; trainer.encoding.whole holds the features."""
    b, entries = _width(spec), shape.edges + shape.nodes
    sorted_copies = (32 + b) * entries  # slot, target, source, order, value
    hashing = 32 * entries  # of one view at a time
    kept = sum((1 - drop) * shape.edges + shape.nodes for drop in spec.augment.edge_drop)
    matrices = (32 + 2 * b) * kept + 32 * shape.nodes  # target, source, order, value; the transpose has its own
    features = 0.0
    if shape.nonzeros is not None:
        features = (8 + b) * shape.nonzeros + 8 * shape.features  # the transpose, for backward
    if b == 8:
        features += 2 * _features(shape)  # cast from float32
    # An epoch's pair of views is let go only when the next one has been drawn.
    return sorted_copies + hashing + 2 * matrices + features


def _batch_views(spec: TrainSpec, shape: GraphShape, reach: Reach) -> float:
    """trainer.sampling and trainer.encoding.batch_view: one batch, two views, its features; degrees of all nodes."""
    b, n, edges = _width(spec), reach.nodes, reach.edges[-1]
    over_all_nodes = (2 * b + 8 + 4 + 4) * shape.nodes + 16 * MB  # two views' degrees, order, places; slices of edges
    batch = 8 * n + 24 * edges  # n_id, source, target, e_id
    at_work = 80 * edges  # drawing neighbours, then hashing and renumbering for one view
    matrices = 0.0
    for drop in spec.augment.edge_drop:
        for hop, into in enumerate(reach.edges):
            entries = (1 - drop) * into + reach.rows[hop]
            matrices += 2 * (8 + b) * entries + 8 * (reach.rows[hop] + reach.rows[hop + 1])  # and the transpose
    if shape.nonzeros is None:
        features = float(b * n * shape.features)
    else:
        taken = shape.nonzeros / shape.nodes * n
        features = 28 * taken  # their places in the file, and the rows themselves
        features += b * n * shape.features if shape.features <= spec.encoder.hidden else (8 + b) * taken
    loaders = spec.sampling.loader_workers * (2 * batch + 20 * MB)  # each samples two batches ahead
    # A pair is let go only when the next one has been encoded.
    return over_all_nodes + batch + at_work + 2 * (matrices + features) + loaders


def _activations(spec: TrainSpec, shape: GraphShape, reach: Reach) -> float:
    """trainer.nn.encoder: what autograd keeps of two views, and the largest layer while it is computed."""
    widths = _widths(spec, shape)
    layers = len(widths) - 1
    slopes = 3 if spec.encoder.activation == "rrelu_random" else 1  # per element beside the output
    kept = at_work = 0.0
    for layer, (narrow, wide) in enumerate(itertools.pairwise(widths)):
        rows, columns = reach.rows[layers - 1 - layer], reach.rows[layers - layer]
        is_sparse = layer == 0 and shape.nonzeros is not None and not _densifies(spec, shape)
        entries = reach.edges[layers - 1 - layer] + rows
        saved = (columns - rows) * narrow * wide + _SPARSE_COST * entries * (wide - narrow)
        if saved > 0 and not is_sparse:  # (Â H) W: the sums are kept for W's gradient
            kept += rows * narrow
            at_work = max(at_work, rows * (narrow + 2 * wide))
        else:  # Â (H W): H is kept, unless it is the features
            kept += columns * narrow if layer else 0
            at_work = max(at_work, (columns + 2 * rows) * wide)
        is_last = layer == layers - 1
        activated = not is_last or spec.encoder.last_activation is not None
        kept += rows * wide * ((slopes + (spec.encoder.norm != "none")) * activated + is_last)
    masked = math.prod(widths[:2])  # the first W with masked rows; going back, its gradient before and after masking
    encoders = 1 if spec.encoder.diffusion == "none" else 2
    return encoders * _width(spec) * (2 * kept + 1.5 * at_work + 2 * masked)


def _densifies(spec: TrainSpec, shape: GraphShape) -> bool:
    return spec.sampling.batch_size is not None and shape.features <= spec.encoder.hidden


def _export(spec: TrainSpec, shape: GraphShape) -> float:
    """trainer.export.layerwise: a buffer for rows, entries and a table; measured, the first two fill half."""
    b, n = _width(spec), shape.nodes
    widths = _widths(spec, shape)
    widest = max(widths[1:] or widths)
    table = b * n * widest
    fits = table <= _EXPORT / 4  # then it is read once, else rows are gathered for each entry
    rows = min(_EXPORT * 3 / 8, 6 * b * n * widest)
    entries = min(_EXPORT * 3 / 8, (96 + (0 if fits else b * widest)) * (shape.edges + n))
    if spec.encoder.at_once:  # trainer.nn.encoder.readout: features, sums, two powers and their total; the table
        return _features(shape) + 5.0 * table + 40 * (shape.edges + n)
    return (rows + entries) / 2 + min(_EXPORT / 4, table) + 30 * n + 8 * MB


def _evaluation(spec: TrainSpec, shape: GraphShape) -> float:
    """trainer.evaluation.evaluate: one judgement after the other, each on a sample; then figures."""
    asked, n, d = spec.evaluation, shape.nodes, _widths(spec, shape)[-1]
    pieces = 40.0 * MB + 32 * d * d + 24 * 2_048 * d  # a piece of the table in float64; moments; uniformity's sample
    needs = [pieces]
    if judged_pairs := min(_held_out(spec, shape), _LINK_PAIRS):
        needs.append(60 * MB + 200 * judged_pairs)
    if shape.classes:
        judged = 2 * min(0.1 * n, asked.max_probe_nodes)  # training and validation nodes
        needs.append(4 * judged * (d + 10 * shape.classes) + 24 * MB)
        clustered = min(n, asked.max_cluster_nodes)
        copies = 3 if clustered <= _FULL_KMEANS else 1.5
        needs.append(4 * clustered * (d * copies + 10 * shape.classes) + 16 * MB)
        needs.append(4 * min(n, asked.max_pairs_nodes) * d + 24 * MB)
    if asked.figures:
        before = 0.0
        if n <= _COMPARED_UP_TO:  # the untrained encoder, exported too
            before = 4 * n * d + _export(spec, shape)
        needs.append(before + 4 * min(n, _DRAWN_PAIRS) * d + 40 * MB)
    return max(needs) + 64 * n  # labels, splits and orders of all nodes


def _width(spec: TrainSpec) -> int:
    """Bytes of a number."""
    return 8 if spec.run.dtype == "float64" else 4


def _widths(spec: TrainSpec, shape: GraphShape) -> list[int]:
    return spec.encoder.widths(shape.features)
