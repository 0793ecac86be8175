"""A graph as the trainer sees it: who sends to whom, what each node looks like, and what the user calls it.

Edges are compressed by *target*: `indices[indptr[i]:indptr[i + 1]]` are the sources of the edges into i, ascending.
As `edge_index` (PyG's convention) that is rows [source, target], sorted by target. An undirected edge is stored twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data import structural
from trainer.data.edges import compress
from trainer.data.features import as_features
from trainer.data.seal import fingerprint
from trainer.errors import InvalidInput
from trainer.files.mapped import Maps

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class Graph:
    """N nodes, E directed edges without self loops or duplicates. Arrays may be memory-mapped: never write to them."""

    name: str
    indptr: Tensor  # [N + 1] int64
    indices: Tensor  # [E] int64, sources
    x: Tensor  # [N, F] float32, strided or CSR, see trainer/data/features.py
    ids: NDArray[Any]  # [N] int64 or unicode: the user's own ids, in node order
    weight: Tensor | None = None  # [E] float32
    y: Tensor | None = None  # [N] int64, -1 = unlabelled; only evaluation reads it
    classes: tuple[str, ...] = ()  # y indexes it
    split: Mapping[str, Tensor] | None = None  # public split: train, val and test indices
    held_out: Tensor | None = None  # [2, K] int64, i < j: pairs without an edge here that have one (data/held_out.py)
    notes: tuple[str, ...] = ()  # what was normalised on the way in, for people
    _maps: Maps = field(default=Maps(), repr=False)  # the files behind the arrays, if they are memory-mapped
    # Set by the store. Not an argument, so that dataclasses.replace(graph, x=...) does not inherit it.
    _stored_fingerprint: str | None = field(default=None, init=False, repr=False)

    @property
    def num_nodes(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """Stored directed edges: twice the number of undirected ones."""
        return self.indices.numel()

    @property
    def num_features(self) -> int:
        return self.x.shape[1]

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def edge_index(self) -> Tensor:
        """[2, E]: sources and targets, built anew at each call."""
        target = torch.repeat_interleave(torch.arange(self.num_nodes), self.indptr.diff())
        return torch.stack([self.indices, target])

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        """Itself: nobody writes to a graph, and torch cannot copy sparse features."""
        return self

    def is_directed(self) -> bool:
        """Whether some edge has no reverse, or one of another weight. Looks at all edges."""
        n, (source, target) = self.num_nodes, self.edge_index.numpy()
        order = np.argsort(source * n + target)  # the reverses, in the order that edges have
        if not (np.array_equal(source[order], target) and np.array_equal(target[order], source)):
            return True
        return self.weight is not None and not np.array_equal(self.weight.numpy()[order], self.weight.numpy())

    @classmethod
    def from_edges(
        cls,
        edge_index: Any,
        x: Any = None,
        *,
        num_nodes: int | None = None,
        name: str = "graph",
        ids: Any = None,
        weight: Any = None,
        y: Any = None,
        classes: Sequence[str] | None = None,
        split: Mapping[str, Any] | None = None,
        directed: bool = False,
        notes: Sequence[str] = (),
    ) -> Graph:
        """Check and normalise; what was changed is told in `notes`.

        Args:
            edge_index: [2, E] integers, sources and targets, in any order and with repetitions.
            x: [N, F] numpy, torch or scipy sparse; none: structural features (trainer.data.structural).
            num_nodes: N, where neither x nor ids say it; none: one more than the largest number in edge_index.
            ids: [N] integers or text, all different; none: 0 to N - 1.
            weight: [E] numbers of at least 0.
            y: [N] integers, -1 for unlabelled; `classes` names them, else they are called "0", "1", ...
            split: index arrays `train`, `val` and `test` without common nodes.
            directed: false adds the reverse of each edge.

        Raises:
            InvalidInput: anything that does not fit together, naming the array and the first wrong position.
        """
        array = _edge_array(edge_index)
        features = None if x is None else as_features(x)
        if features is not None:
            if num_nodes not in (None, features.shape[0]):
                raise InvalidInput(f"features have {features.shape[0]} rows for {num_nodes} nodes. Give one row each.")
            num_nodes = features.shape[0]
        elif num_nodes is None:
            num_nodes = len(ids) if ids is not None else int(array.max()) + 1 if array.size else 0
        if num_nodes < 2:
            raise InvalidInput(f"the graph has {num_nodes} node{'s' * (num_nodes != 1)}; contrast needs at least 2.")
        weights = None if weight is None else np.asarray(weight, dtype=np.float32)
        edges = compress(array, weights, num_nodes, directed=directed)
        labels, names = _labels(y, classes, num_nodes)
        if features is None:
            features = torch.from_numpy(structural.features(edges.indptr, edges.indices))
            notes = (*notes, structural.NOTE)
        return cls(
            name=name,
            indptr=torch.from_numpy(edges.indptr),
            indices=torch.from_numpy(edges.indices),
            x=features,
            ids=_ids(ids, num_nodes),
            weight=None if edges.weight is None else torch.from_numpy(edges.weight),
            y=labels,
            classes=names,
            split=_split(split, num_nodes),
            notes=tuple(dict.fromkeys((*notes, *edges.notes))),
        )

    def save(self, directory: str | Path) -> None:
        """Write a directory of .npy files that `open` reads; it appears whole or not at all.

        Raises:
            FileExistsError: there already is something at `directory`.
        """
        from trainer.data import store  # store builds graphs, so it imports this module

        store.save(self, Path(directory))

    @classmethod
    def open(cls, directory: str | Path, *, mmap: bool = True) -> Graph:
        """Read what `save` wrote. With mmap, arrays stay on disk until touched, and must not be written to.

        Raises:
            InvalidInput: not such a directory, or a file of it is missing or cut short.
        """
        from trainer.data import store

        return store.load(Path(directory), mmap=mmap)

    @property
    def is_mapped(self) -> bool:
        """Whether arrays are read from files as they are touched."""
        return bool(self._maps.arrays)

    def release(self) -> None:
        """Give back the memory that reading memory-mapped arrays took; they are read again when asked for.

        Nothing is lost. Does nothing for a graph that is in memory.
        """
        self._maps.release()

    def fingerprint(self) -> str:
        """SHA-256 over structure, features and ids: what embeddings depend on, so neither labels nor name.

        Read from the manifest where the graph comes from disk; else arrays are walked in pieces, however large.
        """
        if self._stored_fingerprint is not None:
            return self._stored_fingerprint
        from trainer.data import store

        return fingerprint(store.arrays_of(self), self.num_features, release=self.release)


def _edge_array(edge_index: Any) -> NDArray[np.int64]:
    array = np.asarray(edge_index)
    if array.ndim != 2 or array.shape[0] != 2:
        hint = " Transpose it." if array.ndim == 2 and array.shape[1] == 2 else ""
        raise InvalidInput(
            f"edge_index has shape {array.shape}; it must be [2, E]: a row of sources, one of targets.{hint}"
        )
    if array.dtype.kind not in "iu" and array.size:
        raise InvalidInput(f"edge_index has type {array.dtype}; node numbers must be integers.")
    return array.astype(np.int64, copy=False)


def _ids(ids: Any, num_nodes: int) -> NDArray[Any]:
    if ids is None:
        return np.arange(num_nodes, dtype=np.int64)
    array = np.asarray(ids)
    if array.shape != (num_nodes,):
        raise InvalidInput(f"ids have shape {array.shape} for {num_nodes} nodes. Give one id per node.")
    if array.dtype.kind in "iu":
        if array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max:
            raise InvalidInput(f"id {array.max()} does not fit 64 bits with a sign. Give such ids as text.")
        array = array.astype(np.int64, copy=False)
    elif array.dtype.kind != "U":
        raise InvalidInput(f"ids have type {array.dtype}; give integers or text.")
    order = np.argsort(array, kind="stable")
    same = array[order][1:] == array[order][:-1]
    if same.any():
        first = int(same.argmax())
        raise InvalidInput(f"id {array[order[first]]!s} is used twice, by nodes {order[first]} and {order[first + 1]}.")
    return array


def _labels(y: Any, classes: Sequence[str] | None, num_nodes: int) -> tuple[Tensor | None, tuple[str, ...]]:
    if y is None:
        return None, ()
    array = np.asarray(y)
    if array.shape != (num_nodes,) or array.dtype.kind not in "iu":
        raise InvalidInput(f"y is {array.dtype} of shape {array.shape}; give one integer per node, {num_nodes} in all.")
    labels = torch.from_numpy(array.astype(np.int64))
    names = tuple(map(str, range(int(labels.max()) + 1))) if classes is None else tuple(classes)
    if int(labels.min()) < -1 or int(labels.max()) >= len(names):
        raise InvalidInput(
            f"y ranges from {labels.min()} to {labels.max()}, but only -1 to {len(names) - 1} are classes."
        )
    return labels, names


def _split(split: Mapping[str, Any] | None, num_nodes: int) -> dict[str, Tensor] | None:
    if split is None:
        return None
    if set(split) != set(SPLITS):
        raise InvalidInput(f"a split needs train, val and test; found {', '.join(sorted(split)) or 'nothing'}.")
    parts = {key: np.asarray(split[key]) for key in SPLITS}
    for key, part in parts.items():
        if part.ndim != 1 or part.dtype.kind not in "iu":
            raise InvalidInput(f"split {key} is {part.dtype} of shape {part.shape}; give a list of node numbers.")
        if part.size and (part.min() < 0 or part.max() >= num_nodes):
            raise InvalidInput(f"split {key} holds {part.min()} to {part.max()}; nodes are 0 to {num_nodes - 1}.")
    together = np.concatenate(list(parts.values()))
    if len(np.unique(together)) < len(together):
        raise InvalidInput("a node is in the split twice. Train, val and test must have no node in common.")
    return {key: torch.from_numpy(part.astype(np.int64)) for key, part in parts.items()}
