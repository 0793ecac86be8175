"""Answers as tables, and labels as people hold them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.data.sources.identity import by_id, is_missing
from trainer.errors import InvalidInput


@dataclass(frozen=True, eq=False)
class Classified:
    """Classes of the nodes that had no label, and how good such classes are."""

    ids: NDArray[Any]  # [p]
    labels: NDArray[Any]  # [p] as they were given
    confidence: NDArray[np.float32]  # [p] the classifier's own probability
    figures: Mapping[str, Any]  # accuracy over folds, and how it was measured (trainer.inference.classify)

    def frame(self) -> Any:
        """A pandas DataFrame: id, label, confidence."""
        return frame_of({"id": self.ids, "label": self.labels, "confidence": self.confidence})

    def __repr__(self) -> str:
        accuracy, most = self.figures["accuracy"], self.figures["majority"]
        judged = self.figures["reason"] if accuracy is None else f"accuracy {accuracy:.3f}"
        return f"Classified({len(self.ids)} nodes, {judged}; {most:.3f} by the commonest class)"


def frame_of(columns: Mapping[str, NDArray[Any]], vectors: NDArray[np.float32] | None = None) -> Any:
    """A pandas DataFrame of columns and, after them, v0, v1, ... of vectors [N, dim].

    Raises:
        InvalidInput: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise InvalidInput("pandas is not installed, and frames need it: pip install pandas.") from error
    first = pandas.DataFrame({name: list(values) for name, values in columns.items()})
    if vectors is None:
        return first
    rest = pandas.DataFrame(np.array(vectors), columns=[f"v{column}" for column in range(vectors.shape[1])])
    return pandas.concat([first, rest], axis=1)


def number_classes(
    labels: Mapping[Any, Any] | Sequence[Any] | NDArray[Any], row_of: Callable[[Hashable], int], nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], list[Any]]:
    """Rows with a label, the number of each one's class, and the classes in order.

    Raises:
        InvalidInput: not one label per node, or a node that there is none of.
    """
    of_nodes = by_id(labels)
    if of_nodes is not None:
        pairs = [(row_of(node), label) for node, label in of_nodes.items()]
    else:
        if len(labels) != nodes:
            raise InvalidInput(f"there are {len(labels)} labels for {nodes} nodes. Give one each, or {{id: label}}.")
        pairs = list(enumerate(np.asarray(labels, dtype=object).tolist()))
    known = [(row, label) for row, label in pairs if not (is_missing(label) or label == "" or _is_minus_one(label))]
    classes = sorted({label for _, label in known}, key=lambda label: (isinstance(label, str), label))
    number = {label: at for at, label in enumerate(classes)}
    rows = np.array([row for row, _ in known], dtype=np.int64)
    return rows, np.array([number[label] for _, label in known], dtype=np.int64), classes


def _is_minus_one(label: Any) -> bool:
    return isinstance(label, int | np.integer) and label == -1
