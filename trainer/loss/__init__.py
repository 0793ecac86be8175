"""The contrastive objectives, as training calls them, and the readable dense forms they must equal.

L_NML(i) = −log[ e^{z_ii/τ} / ( e^{z_ii/τ} + (N−1) Σ_j m_ij e^{z_ij/τ} ) ],   m_ij = softmax_j(s_ij)
objective = mean_i [ L_NML(i) + a KL(P0 ‖ m_i) ], averaged over view 1→2 and view 2→1 (column softmax of the same s)

nml.py        the terms of the objective; `nml_loss` adds them up
tiled.py      the kernel below: log-sum-exps over an N×N similarity that is never stored
rowwise.py    the same terms for metrics that look at single pairs
infonce.py    InfoNCE with weighted negatives of both views: GRACE and the losses that are built on it
tile_weights.py  the constant weights it takes, tile by tile
reference.py  the formulas with N×N matrices: the oracles of the tests
"""

from __future__ import annotations

from trainer.loss.infonce import infonce_loss
from trainer.loss.nml import nml_loss
from trainer.loss.reference import infonce_reference, nml_loss_reference

__all__ = ["infonce_loss", "infonce_reference", "nml_loss", "nml_loss_reference"]
