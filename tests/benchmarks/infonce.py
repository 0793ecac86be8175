"""The tiled InfoNCE against dense autograd as GRACE publishes it, forward and backward, side by side in one run.

Times are medians over interleaved repeats; memory is the peak resident set above the inputs, each in a process of its
own. Weighted forms are given as multiples of the time without weights.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from dense import published_infonce
from measure import interleaved, peak_above

from trainer.loss.infonce import PairWeights, infonce_loss
from trainer.loss.tile_weights import ComputedWeights, RankedMask, SparseWeights, TileWeights
from trainer.loss.tiled import TileMemory

TAU = 0.4
DEGREE, MASKED, WIDTH = 10, 500, 128  # of the weighted forms
FORMS = {"dense": "dense autograd", "tiled": "tiled, nothing kept", "kept": "tiled, up to 1 GB kept until backward"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2_708, 7_650])
    parser.add_argument("--dim", type=int, default=128, help="width of the projector: 128 and 256 in GRACE's settings")
    parser.add_argument("--peak", nargs=2, metavar=("FORM", "N"), help="internal: measure one peak and print it")
    options = parser.parse_args()
    if options.peak:
        form, n = options.peak
        stepper(form, *inputs(64, options.dim))()  # threads and libraries are in memory now
        print(peak_above(stepper(form, *inputs(int(n), options.dim))))
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, d = {options.dim}, ", end="")
    print(f"medians of {options.repeats}")
    for n in options.sizes:
        compare(n, options.dim, options.repeats)


def inputs(n: int, dim: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    u, noise = (torch.randn(n, dim, generator=generator) for _ in range(2))
    return u.requires_grad_(), (u.detach() + noise).requires_grad_()


def stepper(form: str, u: Tensor, v: Tensor, weights: PairWeights | None = None) -> Callable[[], Tensor]:
    """Forward and backward of one form of the loss."""
    memory = TileMemory(1_024 if form == "kept" else 0)

    def go() -> Tensor:
        if form == "dense":
            loss = published_infonce(u, v, tau=TAU)
        else:
            loss = infonce_loss(u, v, tau=TAU, weights=weights, memory=memory)
        torch.autograd.grad(loss, [u, v])
        return loss.detach()

    return go


def weighted_forms(n: int) -> dict[str, TileWeights]:
    """Weights as HomoGCL, PHASES and ProGCL have them."""
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(n, (2, n * DEGREE), generator=generator)
    frozen = torch.nn.functional.normalize(torch.randn(n, WIDTH, generator=generator))
    return {
        f"{DEGREE} neighbours of each left out": SparseWeights(edges, n),
        f"{MASKED} of each masked by a table": RankedMask(torch.randint(n, (n, MASKED), generator=generator), MASKED),
        f"rebuilt from embeddings of width {WIDTH}": ComputedWeights(lambda i, j: (frozen[i] @ frozen[j].T).add_(1)),
    }


def compare(n: int, dim: int, repeats: int) -> None:
    u, v = inputs(n, dim)
    forms = {form: stepper(form, u, v) for form in FORMS}
    values = {form: go() for form, go in forms.items()}
    torch.testing.assert_close(values["tiled"], values["dense"], rtol=1e-5, atol=0)
    weighted = {name: stepper("tiled", u, v, PairWeights(w, w)) for name, w in weighted_forms(n).items()}
    seconds = interleaved({**forms, **weighted}, repeats)
    peaks = {form: _peak_in_child(form, n, dim) for form in FORMS}
    print(f"\nN = {n:,}")
    for form, meaning in FORMS.items():
        ratios = f"{seconds['dense'] / seconds[form]:5.2f}× as fast, 1/{peaks['dense'] / peaks[form]:.1f} of the memory"
        print(f"  {meaning:42} {seconds[form]:6.2f} s, {peaks[form] / 2**20:6,.0f} MB: {ratios}")
    for name in weighted:
        print(f"  tiled, {name:35} {seconds[name] / seconds['tiled']:6.2f} of the time without weights", flush=True)


def _peak_in_child(form: str, n: int, dim: int) -> int:
    command = [sys.executable, __file__, "--peak", form, str(n), "--dim", str(dim)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
