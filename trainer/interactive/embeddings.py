"""What `trainer.fit` returns: the embeddings of a run, and what can be asked of them without leaving Python."""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.callbacks import Result
from trainer.config import TrainSpec
from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.errors import InvalidInput
from trainer.evaluation.rows import Rows
from trainer.export.embeddings import ENCODER_FILE, LABELS_FILE, read_embeddings, read_encoder
from trainer.inference.classify import classify
from trainer.inference.new_nodes import embed_new_nodes
from trainer.inference.version import preparation_of
from trainer.interactive.card import card
from trainer.interactive.frames import Classified, frame_of, number_classes
from trainer.interactive.newcomers import Known, request
from trainer.nn.encoder import Encoder
from trainer.run.directory import read_spec


@dataclass(frozen=True, eq=False, repr=False)
class Embeddings(Result):
    """A finished run. What it exported is read when it is asked for; `Embeddings.open(run_dir)` opens an earlier one.

    Ids are the user's own. An earlier run that was trained on ids that are neither whole numbers nor text (tuples, say)
    has their text.
    """

    _given_ids: NDArray[Any] | None = field(default=None, kw_only=True)
    _given_graph: Graph | None = field(default=None, kw_only=True)
    _feature_names: tuple[str, ...] | None = field(default=None, kw_only=True)  # None: not known
    _temporary: tempfile.TemporaryDirectory[str] | None = field(default=None, kw_only=True)  # deleted with this object

    @classmethod
    def open(cls, run_dir: str | Path) -> Self:
        """The embeddings of a finished run.

        A run does not keep the names of feature columns: give `embed` the features of new nodes in the order of those
        that were trained on.

        Raises:
            InvalidInput: there is none.
        """
        return cls.read(Path(run_dir).absolute())

    @classmethod
    def of(
        cls, result: Result, *, given_ids: NDArray[Any] | None = None, graph: Graph | None = None,
        feature_names: tuple[str, ...] | None = None, temporary: tempfile.TemporaryDirectory[str] | None = None,
    ) -> Self:  # fmt: skip
        """What a run left; given_ids: in the order of its nodes; feature_names: in the order of its columns."""
        return cls(
            result.directory, result.metrics, result.embeddings, result.epochs, result.stopped_early,
            _given_ids=given_ids, _given_graph=graph, _feature_names=feature_names, _temporary=temporary,
        )  # fmt: skip

    @property
    def vectors(self) -> NDArray[np.float32]:
        """[N, dim], a memory map of the run's file: copy it before you write to it."""
        return self._exported[0]

    @property
    def ids(self) -> NDArray[Any]:
        """[N], the id of each row of `vectors`."""
        return self._exported[1] if self._given_ids is None else self._given_ids

    @cached_property
    def labels(self) -> NDArray[Any] | None:
        """[N] names of classes, empty where a node has none; None for a graph without labels."""
        file = self.directory / "embeddings" / LABELS_FILE
        if not file.exists():
            return None
        numbers = np.load(file, allow_pickle=False)
        return np.array([*self.graph.classes, ""], dtype=np.str_)[numbers]  # -1: the last

    @cached_property
    def spec(self) -> TrainSpec:
        """What was trained."""
        return read_spec(self.directory)

    @cached_property
    def graph(self) -> Graph:
        """What it was trained on."""
        return self._given_graph or load(self.spec.data)

    @cached_property
    def encoder(self) -> Encoder:
        """The trained encoder, an `nn.Module` in eval mode on the CPU."""
        return read_encoder(self.directory / "embeddings" / ENCODER_FILE, self.spec.encoder)

    def __len__(self) -> int:
        return len(self.vectors)

    def lookup(self, nodes: Iterable[Hashable]) -> NDArray[np.float32]:
        """Vectors of some nodes, [n, dim].

        Raises:
            InvalidInput: there is no such node.
        """
        return np.array(self.vectors[[self._row(node) for node in nodes]])

    def frame(self) -> Any:
        """A pandas DataFrame: a column `id`, then one for each dimension."""
        return frame_of({"id": self.ids}, self.vectors)

    def neighbors(self, node: Hashable, k: int = 10) -> list[tuple[Any, float]]:
        """The k nodes most like one by cosine, best first, without itself: (id, cosine) each.

        Raises:
            InvalidInput: there is no such node.
        """
        row = self._row(node)
        if k < 1:
            raise InvalidInput(f"k is {k}; ask for at least 1 neighbour.")
        table = Rows.of(self.vectors)
        (query,) = table.take(torch.tensor([row]), unit=True)
        scores = torch.cat([torch.nn.functional.normalize(piece, dim=1) @ query for piece in table.pieces()])
        scores[row] = -torch.inf
        best = scores.topk(min(k, len(scores) - 1))
        ids = self.ids
        return [(_plain(ids[at]), score) for score, at in zip(best.values.tolist(), best.indices.tolist(), strict=True)]

    def embed(self, new: Any = None, neighbors: Sequence[Sequence[Hashable]] | None = None) -> NDArray[np.float32]:
        """Embeddings of nodes that came after training, [m, dim]; the graph and its embeddings stay as they are.

            found.embed(x_new, neighbors=[["alice", "bob"], ["carol"]])
            found.embed((new_nodes, new_edges))

        Args:
            new: features [m, F], or a pair of frames as for `fit`, whose edges join new nodes to known and new ones;
                none for a graph without features. Columns of a frame are matched by name if the graph came in frames
                too, else by their order.
            neighbors: for each new node the ids of known nodes that it is linked to; in a directed graph these links
                lead to the new node.

        Raises:
            InvalidInput: naming what does not fit.
        """
        known = Known(self.graph, self._rows, self.ids, self._feature_names)
        m, arrays = request(known, new, neighbors)
        return embed_new_nodes(self.encoder, self.graph, self._preparation, m, arrays)

    def classify(self, labels: Mapping[Any, Any] | Sequence[Any] | NDArray[Any], *, seed: int = 0) -> Classified:
        """Learn classes from a few labels, and tell those of all other nodes.

        Args:
            labels: id → label, or one per node in the order of `ids`: None, NaN, -1 or "" where unknown.

        Raises:
            InvalidInput: a node that there is none of, or too few labels.
        """
        rows, numbers, classes = number_classes(labels, self._row, len(self))
        figures, found = classify(self.vectors, rows, numbers, max(2, len(classes)), seed=seed)
        return Classified(
            self.ids[found["rows"]], np.array(classes, dtype=object)[found["classes"]], found["confidence"], figures
        )

    def __copy__(self) -> Self:
        """Itself: nobody writes to it, and a temporary directory is deleted once."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: where the run is; what was read of it is read again.

        Raises:
            InvalidInput: the run is in a temporary directory, which does not outlive this object.
        """
        if self._temporary is not None:
            raise InvalidInput(
                "these embeddings are in a temporary directory, which is deleted with them, so they cannot be pickled. "
                "Give trainer.fit or NodeEmbedder a run_dir; or keep the vectors alone: `frame()`, `vectors`."
            )
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"_given_graph": None}

    def __repr__(self) -> str:
        n, dim = self.vectors.shape
        where = "a temporary directory" if self._temporary is not None else str(self.directory)
        return f"Embeddings({n} nodes × {dim}, {self.spec.method.name}, {self.epochs} epochs, in {where})"

    def _repr_html_(self) -> str:
        return card(repr(self), self.vectors, self.ids, self.labels, self.metrics)

    @cached_property
    def _exported(self) -> tuple[NDArray[np.float32], NDArray[Any]]:
        return read_embeddings(self.directory / "embeddings")

    @cached_property
    def _preparation(self) -> Any:
        return preparation_of(self.spec.data, self.graph)

    @cached_property
    def _rows(self) -> dict[Hashable, int]:
        return {node: row for row, node in enumerate(self.ids.tolist())}

    def _row(self, node: Hashable) -> int:
        row = self._rows.get(node) if isinstance(node, Hashable) else None
        if row is None:
            example = _plain(self.ids[0])
            raise InvalidInput(f"there is no node with the id {node!r}. Ids here look like {example!r}.")
        return row


def _plain(node: Any) -> Any:
    """A Python number or text instead of numpy's."""
    return node.item() if isinstance(node, np.generic) else node
