"""docs/results/paper.md: every table of the paper, ours beside theirs, written from the cells that are there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainer.paper import tables
from trainer.paper.cells import cells_of
from trainer.paper.rows import DATASETS, ROWS, Row
from trainer.paper.tables import Cells

_HEAD = """\
# The paper's tables, computed here

This page is written by `nml paper` from the small files in [cells](cells), one for each run. It is not edited by hand.

    nml paper --datasets cora --datasets citeseer --seeds 5     # computes what is missing, then writes this page
    nml paper --report                                          # only writes this page

Mean ± standard deviation over training seeds; ×5 says how many, no ± means one. In brackets: what the paper prints.
Settings are each method's preset (`nml methods NAME`): published ones where there are such, none chosen here on test
nodes. Protocol `clean`: public split for Cora, CiteSeer and PubMed, otherwise random 10/10/80 redrawn for each seed;
the probe's L2 and epoch are chosen on validation nodes, test nodes are read once, embeddings are taken in eval mode.
The paper's own numbers come from one training seed and its own protocol
([methods 5](../methods.md#5-evaluation-protocols)).
A dash: not computed yet. "failed": the run ended with an error, which its cell names.
"""


def read_cells(folder: Path, rows: Sequence[Row] = ROWS, datasets: Sequence[str] = DATASETS, seeds: int = 100) -> Cells:
    """All fresh cells by data set and row."""
    found: dict[tuple[str, str], list[dict[str, object]]] = {}
    for cell in cells_of(datasets, rows, seeds):
        if cell.file(folder).exists() and (document := cell.read(folder)) is not None:
            found.setdefault((cell.dataset, cell.row.name), []).append(document)
    return found


def write_report(folder: Path, pictures: Sequence[Path] = ()) -> Path:
    """Write the page beside the cells' folder."""
    cells = read_cells(folder / "cells")
    datasets = [name for name in DATASETS if any(dataset == name for dataset, _ in cells)]
    main = [row for row in ROWS if row.group in ("methods", "ablations")]
    random_splits = [name for name in datasets if tables.split_of(name) != "public split"]
    parts = [
        _HEAD,
        "## Accuracy (the paper's Table 1)",
        tables.accuracy(cells, main, datasets),
        *_differences(cells, main, datasets),
        "Published elsewhere, for orientation:",
        tables.others(datasets),
    ]
    if random_splits:
        parts += [
            "### Under the protocols of published numbers",
            "`bgrl20`: as `clean`, but the probe is then fitted on training and validation nodes together, 20 % of all "
            "(BGRL, SGRL).",
            tables.accuracy(cells, main, random_splits, "bgrl20"),
            "`pygcl_swap`: 10/80/10, what public code of this field uses by swapping two arguments.",
            tables.accuracy(cells, main, random_splits, "pygcl_swap"),
        ]
    for title, key in (("FMI (Table 2)", "fmi"), ("ARI (Table 2)", "ari"), ("Distance ratio (Table 3)", "ratio")):
        parts += [f"## {title}", tables.column(cells, main, datasets, key)]
    for title, group in (("α on Photo", "alpha"), ("T_M on Photo", "t_m")):
        rows = [row for row in ROWS if row.group == group]
        if any(("photo", row.name) in cells for row in rows):
            parts += [f"## {title}", tables.accuracy(cells, rows, ["photo"])]
    parts += [
        "## Seconds and memory",
        "Median over seeds, on a CPU with 2 cores. Seconds are the processor's, of all threads, so that other work "
        "beside a cell counts little.",
        tables.cost(cells, main, datasets),
    ]
    if pictures:
        parts.append("## Figures")
        parts += [f"![{path.stem}]({path.relative_to(folder)})" for path in pictures]
    page = folder / "paper.md"
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return page


def _differences(cells: Cells, rows: Sequence[Row], datasets: Sequence[str]) -> list[str]:
    """The paper's claim, tested; nothing where there is nothing to compare yet."""
    named = {"nml-official": "the published configuration", "nml": "ours"}
    found = {name: tables.differences(cells, rows, datasets, name) for name in named}
    there = [
        part for name, text in found.items() if text.count("\n") > 1 for part in (f"`{name}`, {named[name]}:", text)
    ]
    if not there:
        return []
    claim = (
        "The paper's claim is that NML-GCL beats every baseline. Paired by seed, against the baseline with the best "
        "validation accuracy:"
    )
    return [claim, *there]
