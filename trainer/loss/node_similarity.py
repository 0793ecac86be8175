"""What GRACE+ knows of its nodes (methods 4.7): S = (1 − β) Q + β (mean Q / mean C) C, Q = PPR and C = feature cosines.

    p_ij ∝ e^{S_ij/τ_pos} − 1 (the diagonal at least 1), rows sum to 1      positives
    n_ij ∝ e^{−S_ij/τ_neg}, j ≠ i, rows have mean 1 over the others         negatives

Exact: Q as published, 20 steps of teleport 0.1 from the identity, in blocks of rows; C; both means; the normalisers,
two numbers for each node, in log space, where no exponential overflows.
Approximate: S is kept in half precision, N×N in 2 N² bytes, so each S_ij has a relative error of at most 2⁻¹¹, and a
weight one of S_ij/τ times that. p and n themselves are rebuilt tile by tile.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from trainer.data.graph import Graph
from trainer.loss.similar_nodes import Cosines, row_blocks
from trainer.loss.tile_weights import ComputedWeights
from trainer.nn.sparse import PersonalisedPageRank, SparseOperator
from trainer.nn.views import Propagation

_TELEPORT = 0.1  # as published, with 20 steps
_LARGEST = 32_768.0  # that half precision holds, with room; multiplied so, small S are not subnormal


class SoftWeights(NamedTuple):
    """p and n among some nodes."""

    positive: ComputedWeights
    own: Tensor  # p_ii
    negative: ComputedWeights


class NodeSimilarity(nn.Module):
    """S of a graph, and the weights that follow. Fixed by graph and settings, so checkpoints hold none of it."""

    def __init__(self, graph: Graph, *, beta: float, tau_positive: float, tau_negative: float):
        super().__init__()
        self.tau_positive, self.tau_negative = tau_positive, tau_negative
        n = graph.num_nodes
        adjacency = Propagation(graph.indptr, graph.indices, graph.weight).over(None)
        # Row i of Q is column i of its transpose, which is PPR over the reversed edges.
        ppr = PersonalisedPageRank(SparseOperator(adjacency.transpose), teleport=_TELEPORT)
        cosines = Cosines(graph.x)
        reached = PersonalisedPageRank(adjacency, teleport=_TELEPORT) @ torch.ones(n, 1)
        mean_q = float(reached.double().sum()) / n**2
        mean_c = cosines.mean()
        ratio = beta * mean_q / mean_c if mean_c > 1e-12 else 0.0
        self.unit = _LARGEST / (1 - beta + ratio)  # |Q| and |C| are at most 1
        self.table = torch.empty(n, n, dtype=torch.float16)  # no buffer: those take the precision of the run
        for rows in row_blocks(n):
            start = torch.zeros(n, rows.stop - rows.start)
            start[torch.arange(rows.start, rows.stop), torch.arange(rows.stop - rows.start)] = 1
            block = (ppr @ start).T.mul(1 - beta)
            if ratio:
                block.add_(cosines.of(rows), alpha=ratio)
            self.table[rows] = block.mul_(self.unit)
        self._of_all: dict[torch.dtype, SoftWeights] = {}

    def among(self, nodes: Tensor, dtype: torch.dtype) -> SoftWeights:
        """Weights of nodes against each other, normalised over them."""
        n = len(self.table)
        everyone = torch.equal(nodes, torch.arange(n, device=nodes.device))
        if everyone and dtype in self._of_all:
            return self._of_all[dtype]
        found = self._weights(None if everyone else nodes, len(nodes), dtype)
        if everyone:
            self._of_all[dtype] = found
        return found

    def _weights(self, nodes: Tensor | None, count: int, dtype: torch.dtype) -> SoftWeights:
        def similarity(rows: slice, columns: slice) -> Tensor:
            part = self.table[rows, columns] if nodes is None else self.table[nodes[rows, None], nodes[columns]]
            return part.to(dtype).div_(self.unit)

        def log_positive(rows: slice, columns: slice) -> Tensor:
            x = similarity(rows, columns).div_(self.tau_positive).clamp_min_(0)
            logs = x + torch.log(-torch.expm1(-x))  # log(e^x − 1), −inf at 0
            logs.diagonal(rows.start - columns.start).clamp_min_(0)
            return logs

        def log_negative(rows: slice, columns: slice) -> Tensor:
            return similarity(rows, columns).div_(-self.tau_negative)

        positive_sum, negative_sum, own = (torch.empty(count, dtype=dtype) for _ in range(3))
        for rows in row_blocks(count):
            logs = log_positive(rows, slice(0, count))
            height, diagonal = torch.arange(len(logs)), torch.arange(rows.start, rows.stop)
            positive_sum[rows] = logs.logsumexp(1)
            own[rows] = (logs[height, diagonal] - positive_sum[rows]).exp()
            logs = log_negative(rows, slice(0, count))
            logs[height, diagonal] = -torch.inf
            negative_sum[rows] = logs.logsumexp(1) - torch.log(torch.tensor(max(1.0, count - 1.0), dtype=dtype))
        return SoftWeights(
            ComputedWeights(lambda rows, columns: (log_positive(rows, columns) - positive_sum[rows, None]).exp_()),
            own,
            ComputedWeights(lambda rows, columns: log_negative(rows, columns).sub_(negative_sum[rows, None]).exp_()),
        )
