"""The tables and figures of the NML-GCL paper, computed again: `nml paper`.

rows.py       the rows of a table: a method's preset on a data set, or a variant of it
cells.py      one training run of a row, data set and seed, kept as a small JSON file
published.py  the paper's own numbers, and others' for the same data sets
tables.py     Markdown from cells, ours beside theirs
figures.py    pictures from cells
report.py     docs/results/paper.md
"""
