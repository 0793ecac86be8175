"""How much work a classification may be, so that it ends well before the request that waits for it is given up.

A pass is one look at loss and slope. Its cost is counted in multiplications, with what else takes time counted as so
many of them (measured on one core, 0.15 ns each): exponentials, reading rows, and the optimiser's own vectors. Nothing
here looks at a clock, so that a seed gives the same answer on a busy machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.errors import InvalidInput

MOST_PASS = 100_000_000  # cost of a pass where decay is chosen and judged in folds: up to 3,500 passes
MOST_FEW = 200_000_000_000  # cost of all passes where it is not: half a minute
MOST_PREDICTED = 400_000_000_000  # cost of all predictions: a minute at most
ITERATIONS = 100
PER_CLASS = 4  # labels of a class that are used at least, however many classes there are
_FEWEST_JUDGED, _FEWEST = 20, 15  # iterations below which folds are left out, and below which nothing is learned
_PASSES = 1.2  # of an iteration


@dataclass(frozen=True)
class Effort:
    """What is done with the labels that are used."""

    is_heavy: bool  # one decay for all, few folds
    judges: bool
    iterations: int  # of each fit


def pass_cost(rows: int, dim: int, classes: int) -> int:
    """Of a pass over so many rows."""
    return rows * (classes + 16) * (dim + 128) + 256 * dim * classes


def most_rows(dim: int, classes: int) -> int:
    """How many labels are used at most."""
    left = MOST_PASS - pass_cost(0, dim, classes)
    return max(left // pass_cost_of_row(dim, classes), PER_CLASS * classes)


def pass_cost_of_row(dim: int, classes: int) -> int:
    return pass_cost(1, dim, classes) - pass_cost(0, dim, classes)


def effort(rows: int, dim: int, classes: int) -> Effort:
    """For so many labels, `most_rows` at most.

    Raises:
        InvalidInput: so many classes of such wide vectors cannot be learned in time.
    """
    cost = pass_cost(rows, dim, classes)
    if cost <= MOST_PASS:
        return Effort(is_heavy=False, judges=True, iterations=ITERATIONS)
    alone = int(MOST_FEW / (_PASSES * cost))
    judged = alone // 2  # two folds of half the rows each, beside the classifier itself
    if judged >= _FEWEST_JUDGED:
        return Effort(is_heavy=True, judges=True, iterations=min(ITERATIONS, judged))
    if alone < _FEWEST:
        raise InvalidInput(
            f"{classes} classes of vectors with {dim} values take longer to learn than a request may. Give labels of "
            "fewer classes at a time."
        )
    return Effort(is_heavy=True, judges=False, iterations=min(ITERATIONS, alone))


def check_predictions(rows: int, dim: int, classes: int) -> None:
    """Raises InvalidInput if it takes too long to tell the classes of so many rows."""
    most = 2 * MOST_PREDICTED // pass_cost_of_row(dim, classes)  # a prediction is half of a pass
    if rows > most:
        raise InvalidInput(
            f"the classes of {rows:,} nodes are asked for; with {classes} classes of vectors with {dim} values "
            f"{most:,} can be told at a time. Give `predict`, or fewer nodes in it."
        )
