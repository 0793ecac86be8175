"""Numbers that others have published, as orientation beside ours. Protocols differ; each source names its own.

`PAPER` is "Negative Metric Learning for Graphs" (IJCAI 2025), its tables of accuracy, clustering and distances: public
split for the citation sets, random splits otherwise, one training seed and ten seeds of the classifier (methods 5.2).
"""

from __future__ import annotations

from typing import NamedTuple


class Figures(NamedTuple):
    """What the paper prints for a method on a data set, in per cent; None where it prints none."""

    accuracy: float | None
    fmi: float | None = None
    ari: float | None = None
    ratio: float | None = None


SETS = ("cora", "citeseer", "pubmed", "photo", "computers", "wikics")


def _row(accuracy: str, fmi: str = "", ari: str = "", ratio: str = "") -> dict[str, Figures]:
    columns = [_numbers(text) for text in (accuracy, fmi, ari, ratio)]
    return {name: Figures(*(column[place] for column in columns)) for place, name in enumerate(SETS)}


def _numbers(text: str) -> list[float | None]:
    return [None if word == "OOM" else float(word) for word in text.split()] or [None] * len(SETS)


PAPER: dict[str, dict[str, Figures]] = {
    "bgrl": _row(
        "82.22 72.27 79.41 93.01 88.25 77.81", "52.74 46.37 54.40 62.59 45.37 36.16",
        "42.82 34.27 28.44 50.34 31.68 27.96", "92.25 96.49 91.20 62.23 71.98 95.30",
    ),
    "grace": _row(
        "81.52 70.12 78.32 91.88 87.15 77.95", "53.24 45.36 51.47 57.27 46.83 37.61",
        "43.68 33.71 24.63 47.42 35.22 28.24", "89.50 95.04 91.40 60.30 63.26 74.20",
    ),
    "mvgrl": _row(
        "81.15 70.46 78.63 92.59 87.66 78.52", "55.49 47.43 51.52 57.67 45.74 35.16",
        "46.68 37.82 24.97 48.04 33.75 25.53", "82.05 90.48 85.71 100.28 100.26 99.37",
    ),
    "localgcl": _row(
        "83.86 71.78 80.95 92.83 88.69 78.98", "51.33 47.98 54.08 61.78 46.15 38.25",
        "40.53 36.34 27.15 48.02 33.16 29.14", "92.30 96.70 92.22 77.30 71.95 80.58",
    ),
    "phases": _row(
        "82.19 70.49 81.08 92.74 87.80 79.61", "53.77 49.38 50.88 56.45 45.71 40.43",
        "44.22 38.50 23.35 48.51 35.97 30.74", "72.10 91.21 87.56 70.99 72.12 78.75",
    ),
    "homogcl": _row(
        "83.19 70.11 81.02 92.31 87.82 78.18", "56.71 49.06 58.05 62.37 48.50 40.25",
        "47.13 38.28 33.54 53.26 37.14 31.33", "83.24 89.33 91.10 100.15 100.51 99.21",
    ),
    "grace-plus": _row(
        "82.84 70.57 81.13 92.73 88.56 79.33", "55.36 49.91 54.20 61.88 48.08 43.59",
        "45.92 39.62 28.36 53.94 36.66 35.02", "87.73 90.69 91.23 68.15 64.82 77.03",
    ),
    "progcl": _row(
        "82.04 70.63 78.14 92.71 87.90 78.21", "56.00 49.90 52.14 62.14 48.27 39.12",
        "46.52 38.98 25.60 50.32 36.44 29.21", "82.74 87.80 93.49 62.30 60.79 89.40",
    ),
    "grape": _row(
        "83.88 72.34 OOM 92.76 87.97 79.91", "56.50 50.87 OOM 62.24 48.84 40.85",
        "47.45 40.39 OOM 53.73 38.67 32.03", "91.98 89.35 OOM 99.92 100.26 87.28",
    ),
    "nml-official": _row(
        "84.93 73.37 82.10 93.36 89.43 80.32", "58.23 52.46 59.81 63.13 50.52 45.46",
        "49.50 42.19 35.82 55.56 39.42 37.74", "71.23 85.72 84.13 52.81 60.25 71.02",
    ),
    "uniform": _row("82.82 70.31 80.14 92.12 87.76 77.91"),
    "cosine": _row("83.87 71.18 81.31 92.80 88.35 79.13"),
}  # fmt: skip


class Other(NamedTuple):
    """An accuracy published elsewhere, with what it was measured by."""

    method: str
    dataset: str
    accuracy: float
    protocol: str


PUBLIC, TWENTY = "public split", "probe on 20 %"
OTHERS = (
    Other("GraphMAE2", "cora", 84.5, PUBLIC), Other("Bandana", "cora", 84.62, PUBLIC),
    Other("GraphMAE (reproduced by others)", "cora", 84.06, PUBLIC), Other("CCA-SSG", "cora", 83.77, PUBLIC),
    Other("GRACE", "cora", 82.53, PUBLIC), Other("Bandana", "citeseer", 73.60, PUBLIC),
    Other("GraphMAE2 (reproduced by others)", "citeseer", 73.28, PUBLIC), Other("Bandana", "pubmed", 83.53, PUBLIC),
    Other("BGRL", "photo", 93.17, TWENTY), Other("SGRL", "photo", 93.95, TWENTY),
    Other("BGRL", "computers", 90.34, TWENTY), Other("SGRL", "computers", 90.23, TWENTY),
)  # fmt: skip
