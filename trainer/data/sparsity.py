"""Constants of features, apart from what computes with them, so that they are known without numpy or torch."""

from __future__ import annotations

SPARSE_BELOW = 0.25  # share of non-zeros up to which compressed rows (12 bytes a value) beat dense (4 bytes an entry)
STRUCTURAL_WIDTH = 128  # features of nodes that come without any (trainer.data.structural)
