"""The same terms for metrics that do not factor, walked by blocks of whole rows.

Each block is recomputed in backward (torch.utils.checkpoint), so memory stays at one block of pairs. Both directions
are separate sweeps, which costs twice the products of the tiled kernel: use a factored metric for large graphs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus
from torch.utils.checkpoint import checkpoint

from trainer.loss.nml import Terms
from trainer.nn.metric import PairMetric

BLOCK_BYTES = 64 * 2**20


def rowwise_terms(
    p: Tensor,
    q: Tensor,
    u: Tensor,
    v: Tensor,
    metric: PairMetric,
    *,
    factor: float | None = None,
    rows: int | None = None,
) -> Terms:
    """Exact loss terms for z = p·q and s = metric(u, v).

    p: [N, d] unit rows of view 1 divided by τ; q: [N, d] unit rows of view 2; u, v: the embeddings the metric looks at;
    factor: as in `nml_terms`, None for N − 1; rows: height of a block, None for one of about 64 MB.
    """
    n = len(p)
    factor = n - 1 if factor is None else factor
    height = rows or max(1, BLOCK_BYTES // (n * metric.bytes_per_pair))
    total = p.new_zeros(3)
    for transposed in (False, True):
        anchors, others, seen, seen_all = (q, p, v, u) if transposed else (p, q, u, v)
        for start in range(0, n, height):
            part = slice(start, start + height)
            total = total + checkpoint(
                _block, metric, anchors[part], others, seen[part], seen_all, start, transposed, factor,
                use_reentrant=False, preserve_rng_state=False,
            )  # fmt: skip
    nml, kl, nce = total / (2 * n)
    return Terms(nml, kl, nce.detach())


def _block(
    metric: PairMetric, p: Tensor, q: Tensor, u: Tensor, v: Tensor, start: int, transposed: bool, factor: float
) -> Tensor:  # [3]: sums of L_NML, KL and InfoNCE over the block's rows
    n = len(q)
    z = p @ q.T
    positive = z[torch.arange(len(p)), torch.arange(start, start + len(p))]
    s = metric.scores(z, positive, u, v, transposed=transposed)
    mass = s.logsumexp(1)
    nml = softplus(math.log(factor) + (s + z).logsumexp(1) - mass - positive)
    kl = mass - math.log(n) - s.mean(1)
    nce = z.logsumexp(1) - positive
    return torch.stack([nml.sum(), kl.sum(), nce.sum()])
