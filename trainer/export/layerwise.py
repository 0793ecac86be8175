"""Exact embeddings of a graph that need not fit in memory: layer by layer over all nodes, in pieces.

H(k+1)[piece] = σ(Â[piece, :] H(k) W(k) + b(k)) in eval mode, Â = D^{-1/2} (A + I) D^{-1/2} with D = 1 + weighted
in-degree over the whole graph: what `Encoder.readout` computes at once on `Propagation.whole()`, up to rounding.

A *sweep* reads one table of rows and writes the next. Sweep k sums the messages of layer k; what is narrower is
gathered: with fan_in <= fan_out rows are summed and then multiplied by W(k), else the sweep before (sweep -1 for the
features) has already multiplied them, as it always has if features are sparse. Each step of smoothing
(`encoder.smoothing`) is a sweep that only sums.

Memory: about `buffer_mb`, some 30 bytes a node for degrees and node lists, the encoder. Disk: two tables at a time.
An encoder with diffusion or powers sees the whole graph at once, as it did in training; the table is then only written
here.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from trainer.data.graph import Graph
from trainer.errors import InvalidInput, NonFinite
from trainer.export.scratch import Scratch, Table, create_table, discard_scratch, open_table, write_rows
from trainer.export.sums import ENTRY_BYTES, Source, aggregate, closures, inverse_root_degrees, sparse_times
from trainer.nn.encoder import Encoder, features_of
from trainer.nn.sparse import rows_of
from trainer.nn.views import Propagation

Progress = Callable[[int, int], None]  # rows done and rows in all, summed over sweeps


def embed_layerwise(
    encoder: Encoder,
    graph: Graph,
    target: Path,
    *,
    model_digest: str,
    graph_digest: str | None = None,
    rows: range | None = None,
    buffer_mb: int = 256,
    progress: Progress | None = None,
    keep_record: bool = False,
) -> None:
    """Write the embeddings as a float32 .npy [N, dim] to `target`, which appears whole or not at all.

    Killed at any point, the same call goes on after the last finished piece and gives the same bytes, on the same
    machine with as many threads. One process at a time per target.

    Args:
        model_digest: names the weights, see `model_digest`; with another one, unfinished work is thrown away.
        graph_digest: likewise names the graph; none: `graph.fingerprint()`, which reads all of it.
        rows: only these nodes, and before that only what they depend on; the target then has len(rows) rows.
        buffer_mb: memory for pieces, see above; it decides their size and hence the last bits of the result.
        progress: called with (done, total) at the start and after each piece.
        keep_record: remember that the target is finished until `discard_scratch(target)`, for callers with more to do
            that a kill may interrupt: the same call then finds nothing left to compute.

    Raises:
        NonFinite: an embedding is NaN, infinite or beyond float32; the target is not written.
        InvalidInput: `rows` are not nodes of the graph.
    """
    if rows is not None and not (rows.step == 1 and 0 <= rows.start < rows.stop <= graph.num_nodes):
        raise InvalidInput(f"{rows} are not nodes of {graph.name}. Give range(a, b), 0 <= a < b <= {graph.num_nodes}.")
    key = {
        "model": model_digest, "graph": graph_digest or graph.fingerprint(), "dtype": str(_like(encoder).dtype),
        "rows": None if rows is None else [rows.start, rows.stop], "buffer_mb": buffer_mb,
    }  # fmt: skip
    scratch = Scratch(target, key)
    if not scratch.published:
        try:
            with torch.no_grad():
                layers = layers_of(encoder, graph)
                _sweep_all(layers, graph, scratch, rows, buffer_mb << 20, progress or (lambda done, total: None))
        except NonFinite:
            discard_scratch(target)  # going on would only meet the same numbers
            raise
        scratch.publish()
    if not keep_record:
        discard_scratch(target)


def model_digest(encoder: Encoder) -> str:
    """SHA-256 over the encoder's spec and weights: what embeddings of a given graph depend on."""
    digest = hashlib.sha256(f"{encoder.num_features};{encoder.spec.model_dump_json()};".encode())
    for name, value in sorted(encoder.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Layers:
    """The encoder's dense half, and in which order each layer works."""

    weights: list[Tensor]
    biases: list[Tensor]
    finishes: list[nn.Module]  # in eval mode
    transforms_first: list[bool]  # false after the last layer, too
    smoothing: int
    like: Tensor  # of the precision and on the device of the computation
    inputs: Table

    @property
    def sweeps(self) -> list[int]:
        copies = self.transforms_first[0] or not self.weights
        return [-1] * copies + list(range(self.hops))

    @property
    def hops(self) -> int:
        """How often neighbours are summed."""
        return len(self.weights) + self.smoothing

    def width_written(self, sweep: int) -> int:
        if not self.weights:
            return self.inputs.rows.shape[1]
        layer = sweep + self._transforms_after(sweep)
        return self.weights[min(layer, len(self.weights) - 1)].shape[1]

    def row_bytes(self, sweep: int, width_read: int) -> int:
        """Memory a row takes while a sweep works on it: sums, products, activations, each with a copy."""
        at_work = self.width_written(sweep)
        if max(sweep, 0) < len(self.weights):
            at_work += self.weights[max(sweep, 0)].shape[1]
        return 2 * (width_read + at_work) * self.like.element_size()

    def after_sum(self, sweep: int, rows: Tensor) -> Tensor:
        """What follows the sums of layer `sweep`, up to what the next sweep sums.  [n, width read] -> [n, written]."""
        if sweep >= len(self.weights):
            return rows
        if not self.transforms_first[sweep]:
            rows = rows @ self.weights[sweep]
        rows += self.biases[sweep]
        rows = self.finishes[sweep](rows)
        if self._transforms_after(sweep):
            rows = rows @ self.weights[sweep + 1]
        return rows

    def _transforms_after(self, sweep: int) -> bool:
        return sweep < len(self.weights) and self.transforms_first[sweep + 1]


def layers_of(encoder: Encoder, graph: Graph) -> Layers:
    """What of the encoder works on rows of this graph; sparse features make the first layer multiply first."""
    like = _like(encoder)
    if encoder.spec.at_once:
        with torch.no_grad():
            return Layers([], [], [], [False], 0, like, Table(_embed_at_once(encoder, graph), lambda: None))
    weights = [weight.detach() for weight in encoder.weights]
    first = [weight.shape[0] > weight.shape[1] for weight in weights]
    if weights:
        first[0] = first[0] or graph.x.layout == torch.sparse_csr
    # copies, so that the encoder's own mode is left alone
    finishes: list[nn.Module] = [copy.deepcopy(finish).eval() for finish in encoder.finishes]
    biases = [bias.detach() for bias in encoder.biases]
    inputs = Table(graph.x, graph.release)
    return Layers(weights, biases, finishes, [*first, False], encoder.spec.smoothing, like, inputs)


def _like(encoder: Encoder) -> Tensor:
    """An empty tensor of the encoder's precision, on its device."""
    return next(encoder.parameters(), torch.empty(0)).detach().new_empty(0)


def _embed_at_once(encoder: Encoder, graph: Graph) -> Tensor:
    encoder = copy.deepcopy(encoder).eval()
    like = _like(encoder)
    propagation = Propagation.of(graph, like.device, like.dtype)
    return encoder.readout(features_of(graph, like.device, like.dtype), propagation.whole())


def _sweep_all(
    layers: Layers, graph: Graph, scratch: Scratch, rows: range | None, buffer: int, progress: Progress
) -> None:
    """All sweeps from where `scratch` says; a piece is safe on disk before it counts as done."""
    sweeps, dtype = layers.sweeps, layers.like.dtype
    at_most = max(1, buffer // ENTRY_BYTES)
    needed: list[Tensor | None] = [None] * len(sweeps)  # the nodes whose rows a sweep writes
    if rows is not None:
        needed = [*closures(graph, rows, len(sweeps) - 1, at_most)]
    counts = [graph.num_nodes if nodes is None else len(nodes) for nodes in needed]
    scale = inverse_root_degrees(graph, dtype, at_most)
    progress(sum(counts[: scratch.sweep]) + scratch.rows, sum(counts))
    for number in range(scratch.sweep, len(sweeps)):
        final = number == len(sweeps) - 1
        path, nodes, count = scratch.table(number), needed[number], counts[number]
        if scratch.rows == 0:
            create_table(path, (count, layers.width_written(sweeps[number])), torch.float32 if final else dtype)
        table = open_table(scratch.table(number - 1)) if number else layers.inputs
        held = needed[number - 1] if number else None
        step, compute = _computation(layers, sweeps[number], graph, scale, table, held, buffer)
        for first in range(scratch.rows, count, step):
            last = min(first + step, count)
            piece = torch.arange(first, last) if nodes is None else nodes[first:last]
            written = compute(piece).cpu()
            if final:
                written = written.float()
                _check_finite(written, piece, graph)
            write_rows(path, first, written.numpy())
            del written
            scratch.commit(number + (last == count), last % count)
            progress(sum(counts[:number]) + last, sum(counts))


def _computation(
    layers: Layers, sweep: int, graph: Graph, scale: Tensor, table: Table, held: Tensor | None, buffer: int
) -> tuple[int, Callable[[Tensor], Tensor]]:
    """How many rows a piece of this sweep may have, and the function from ascending nodes to their rows.

    The buffer is shared out: 3/8 to the rows being computed, 3/8 to the entries being summed and the rows they gather,
    1/4 to the part of the table that is mapped or kept.
    """
    if table.rows.layout == torch.sparse_csr:
        step = buffer * 3 // 8 // layers.row_bytes(sweep, 0)
        at_most = max(1, buffer * 3 // 8 // ENTRY_BYTES)
        if not layers.weights:
            return max(1, step), lambda nodes: rows_of(table.rows, nodes).to_dense()
        return max(1, step), lambda nodes: sparse_times(graph, layers.weights[0], nodes, at_most)
    source = Source(table, held, layers.like, buffer // 4)
    step = max(1, buffer * 3 // 8 // layers.row_bytes(sweep, source.width))
    if sweep < 0 and layers.weights:
        return step, lambda nodes: source.take(nodes) @ layers.weights[0]
    if sweep < 0:
        return step, source.take
    gathered = 0 if source.resident is not None else source.row_bytes
    at_most = max(1, buffer * 3 // 8 // (ENTRY_BYTES + gathered))
    return step, lambda nodes: layers.after_sum(sweep, aggregate(graph, scale, source, nodes, at_most))


def _check_finite(vectors: Tensor, nodes: Tensor, graph: Graph) -> None:
    finite = vectors.isfinite().all(dim=1)
    if not bool(finite.all()):
        node = graph.ids[int(nodes[int(finite.long().argmin())])].item()
        raise NonFinite(f"the embedding of node {node!r} is not finite. Lower optimiser.lr, then train again.")
