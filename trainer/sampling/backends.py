"""Who draws the neighbours: our own sampler, or the compiled ones that PyG uses where they are installed.

"csr" is ours (trainer/sampling/csr.py) and always there. "torch-sparse" and "pyg-lib" run through PyG's
`NeighborSampler`; they draw from torch's global stream, so each batch seeds it with its key and puts it back after.
All give edges by their position in `graph.indices` and take the graph's own arrays: a CSR by target is PyG's CSC of
`edge_index`, nothing is sorted or copied.

"torch-sparse" (0.6.18) is not quite uniform: each of its draws leaves out one candidate, so the last neighbours of a
list come up too rarely. Taking 2 of 5 we saw the last two 0.6 times as often as they should be, and taking 1 of 2 never
the last; the effect fades as lists grow longer than the fan-out (issue 385 of rusty1s/pytorch_sparse). Ours is exact.

"pyg-lib" has never been run by us: there was no build of it for the machine this was written on. It shares every line
with "torch-sparse" but the call into the library, which is PyG's.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch_geometric.typing
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler, EdgeSamplerInput, NeighborSampler, NodeSamplerInput, SamplerOutput

from trainer.data.graph import Graph
from trainer.errors import InvalidInput
from trainer.sampling.csr import CsrSampler, check_num_neighbors

BACKENDS = ("csr", "torch-sparse", "pyg-lib")


def available() -> tuple[str, ...]:
    """The backends that can be used here, ours first."""
    present = {
        "csr": True,
        "torch-sparse": _imports("torch_sparse"),
        "pyg-lib": bool(torch_geometric.typing.WITH_PYG_LIB),  # what PyG itself goes by
    }
    return tuple(name for name in BACKENDS if present[name])


def build_sampler(graph: Graph, num_neighbors: Sequence[int], backend: str = "csr") -> BaseSampler:
    """A sampler with `sample_from_nodes`, whose attribute `key` names the draws of the next batch.

    Args:
        num_neighbors: in-edges per node and hop, -1 for all.

    Raises:
        InvalidInput: fan-outs out of range, or a backend that is unknown or not installed.
    """
    if backend not in BACKENDS:
        raise InvalidInput(f"sampling.backend is {backend!r}; it must be one of {', '.join(BACKENDS)}.")
    if backend not in available():
        raise InvalidInput(
            f"sampling.backend is {backend!r}, which is not installed for torch {torch.__version__}. "
            f"Install {backend}, or use csr, which needs nothing."
        )
    if backend == "csr":
        return CsrSampler(graph, num_neighbors)
    return StreamSampler(graph, num_neighbors, TorchSparseSampler if backend == "torch-sparse" else NeighborSampler)


class TorchSparseSampler(NeighborSampler):
    """PyG's sampler, always on torch-sparse: PyG's own choice is pyg-lib wherever that is installed."""

    def _sample(self, seed: Tensor, seed_time: Tensor | None = None, **kwargs: Any) -> SamplerOutput:
        fan_outs = self.num_neighbors.get_mapped_values()
        drawn = torch.ops.torch_sparse.neighbor_sample(self.colptr, self.row, seed, fan_outs, False, True)
        node, row, col, edge = drawn  # without replacement, directional
        return SamplerOutput(node=node, row=row, col=col, edge=edge)


class StreamSampler(BaseSampler):
    """One of PyG's samplers, made a function of (key, seeds): seeds torch's stream for a batch, and restores it."""

    def __init__(self, graph: Graph, num_neighbors: Sequence[int], kind: type[NeighborSampler], key: int = 0) -> None:
        self.num_neighbors = check_num_neighbors(num_neighbors)
        self.key = key
        with warnings.catch_warnings():  # PyG prefers pyg-lib; whoever asks for torch-sparse has chosen
            warnings.filterwarnings("ignore", message=".*without a 'pyg-lib' installation")
            self._sampler = kind(Data(num_nodes=graph.num_nodes), num_neighbors=list(self.num_neighbors))
        # An edge_index would be built, and a copy of the graph kept; these two are all that sampling reads.
        self._sampler.colptr, self._sampler.row, self._sampler.perm = graph.indptr, graph.indices, None

    def sample_from_nodes(self, inputs: NodeSamplerInput) -> SamplerOutput:
        """As `CsrSampler.sample_from_nodes`, but neighbours also depend on the seeds beside a node."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.key)
            out = self._sampler.sample_from_nodes(inputs)
        out.num_sampled_nodes, out.num_sampled_edges = _per_hop(out, len(inputs.node), len(self.num_neighbors))
        return out

    def sample_from_edges(self, inputs: EdgeSamplerInput, neg_sampling: Any = None) -> SamplerOutput:
        """Refused: nothing here trains on pairs of nodes, but PyG wants every sampler to answer."""
        raise InvalidInput("this sampler starts from nodes only. Use sample_from_nodes with both ends of the edges.")


def _per_hop(out: SamplerOutput, num_seeds: int, hops: int) -> tuple[list[int], list[int]]:
    """Nodes found and edges taken at each hop, which torch-sparse does not tell.

    The targets of hop h + 1 are the nodes found at hop h, and edges are in the order of their targets.
    """
    nodes, edges = [num_seeds], []
    known = taken = 0  # nodes that had their turn as targets, edges into them
    for _ in range(hops):
        known += nodes[-1]
        end = int(torch.searchsorted(out.col, known))
        found = max(known, int(out.row[taken:end].max()) + 1) if end > taken else known
        edges.append(end - taken)
        nodes.append(found - known)
        taken = end
    return nodes, edges


def _imports(module: str) -> bool:
    try:
        importlib.import_module(module)
    except (ImportError, OSError):  # OSError: built for another torch
        return False
    return True
