"""Markdown tables from cells: mean ± standard deviation over training seeds, the paper's number in brackets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer.paper.published import OTHERS, PAPER, Figures
from trainer.paper.rows import PUBLIC_SPLIT, Row

Cells = Mapping[tuple[str, str], Sequence[dict[str, Any]]]  # by data set and row: its finished cells, by seed
OURS = ("nml-official", "nml")
REFERENCES = ("features", "sgc", "untrained", "fastrp")
TITLES = {
    "cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed", "photo": "Photo", "computers": "Computers", "cs": "CS",
    "physics": "Physics", "wikics": "Wiki-CS",
}  # fmt: skip


def table(cells: Cells, rows: Sequence[Row], datasets: Sequence[str], cell: Callable[[str, str], str]) -> str:
    """A row for each of `rows` that has a cell in some data set."""
    there = [row for row in rows if any(cells.get((dataset, row.name)) for dataset in datasets)]
    titles = [TITLES.get(name, name) for name in datasets]
    lines = [f"| method | {' | '.join(titles)} |", "|---" * (len(datasets) + 1) + "|"]
    for row in there:
        lines.append(f"| {row.title} | " + " | ".join(cell(dataset, row.name) for dataset in datasets) + " |")
    return "\n".join(lines)


def accuracy(cells: Cells, rows: Sequence[Row], datasets: Sequence[str], protocol: str = "clean") -> str:
    """Test accuracy under one protocol; with `clean`, beside the paper's."""

    def cell(dataset: str, name: str) -> str:
        values = [found["accuracy"][protocol]["test"] for found in done(cells, dataset, name, protocol)]
        return _with_paper(cells, dataset, name, values, "accuracy" if protocol == "clean" else None)

    return table(cells, rows, datasets, cell)


def column(cells: Cells, rows: Sequence[Row], datasets: Sequence[str], key: str) -> str:
    """FMI, ARI or the distance ratio, beside the paper's."""

    def cell(dataset: str, name: str) -> str:
        return _with_paper(cells, dataset, name, [found[key] for found in done(cells, dataset, name)], key)

    return table(cells, rows, datasets, cell)


def cost(cells: Cells, rows: Sequence[Row], datasets: Sequence[str]) -> str:
    """Median processor seconds of training (of all threads together) and peak memory."""

    def cell(dataset: str, name: str) -> str:
        found = done(cells, dataset, name)
        if not found:
            return _failure(cells, dataset, name)
        seconds = statistics.median(one["cpu_seconds"] for one in found)
        return f"{seconds:.0f} s, {statistics.median(one['peak_mb'] for one in found):.0f} MB"

    return table(cells, rows, datasets, cell)


def differences(cells: Cells, rows: Sequence[Row], datasets: Sequence[str], name: str) -> str:
    """A row's accuracy against the best baseline (by mean validation accuracy), paired by seed.

    The baseline is chosen on validation nodes; with two seeds or fewer there is no test.
    """
    lines = ["| data set | best baseline | difference, points | seeds | p (paired t) |", "|---|---|---|---|---|"]
    baselines = [row.name for row in rows if row.name not in (*OURS, "uniform", "cosine", *REFERENCES)]
    for dataset in datasets:
        ours = by_seed(cells, dataset, name)
        there = {other: found for other in baselines if (found := by_seed(cells, dataset, other))}
        if not ours or not there:
            continue
        best = max(there, key=lambda other: statistics.mean(one["val"] for one in there[other].values()))
        shared = sorted(ours.keys() & there[best].keys())
        apart = [ours[seed]["test"] - there[best][seed]["test"] for seed in shared]
        title, apart_text = TITLES.get(dataset, dataset), _mean(apart, sign=True)
        lines.append(f"| {title} | {best} | {apart_text} | {len(shared)} | {_paired_p(apart)} |")
    return "\n".join(lines)


def others(datasets: Sequence[str]) -> str:
    """What has been published elsewhere, each with its protocol."""
    lines = ["| data set | method | accuracy | protocol |", "|---|---|---|---|"]
    lines += [
        f"| {TITLES.get(other.dataset, other.dataset)} | {other.method} | {other.accuracy:.2f} | {other.protocol} |"
        for other in OTHERS
        if other.dataset in datasets
    ]
    return "\n".join(lines)


def done(cells: Cells, dataset: str, name: str, protocol: str = "clean") -> list[dict[str, Any]]:
    """The cells that did not fail and were judged under a protocol."""
    return [found for found in cells.get((dataset, name), ()) if protocol in found.get("accuracy", {})]


def by_seed(cells: Cells, dataset: str, name: str) -> dict[int, dict[str, float]]:
    """Validation and test accuracy under `clean`."""
    return {found["seed"]: found["accuracy"]["clean"] for found in done(cells, dataset, name)}


def split_of(dataset: str) -> str:
    return "public split" if dataset in PUBLIC_SPLIT else "random 10/10/80"


def _with_paper(cells: Cells, dataset: str, name: str, values: list[float], key: str | None) -> str:
    if not values:
        return _failure(cells, dataset, name)
    published: Figures | None = PAPER.get(name, {}).get(dataset)
    theirs = getattr(published, key) if published is not None and key is not None else None
    return _mean(values) + (f" ×{len(values)}" if len(values) > 1 else "") + (f" ({theirs})" if theirs else "")


def _failure(cells: Cells, dataset: str, name: str) -> str:
    return "failed" if any("failed" in found for found in cells.get((dataset, name), ())) else "–"


def _mean(values: Sequence[float], *, sign: bool = False) -> str:
    text = f"{statistics.mean(values):+.2f}" if sign else f"{statistics.mean(values):.2f}"
    return text if len(values) < 2 else f"{text} ± {statistics.stdev(values):.2f}"


def _paired_p(apart: Sequence[float]) -> str:
    if len(apart) < 3 or len(set(apart)) == 1:
        return "–"
    from scipy.stats import ttest_1samp

    return f"{ttest_1samp(apart, 0).pvalue:.2g}"
