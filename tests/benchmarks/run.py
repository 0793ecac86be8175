"""`make bench`: the tiled loss and a whole epoch against the dense form, side by side in one run.

Prints ratios; seconds on this or any machine are beside the point. Times are medians over interleaved repeats, memory
is the peak resident set above the inputs, each measured in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

sys.path.insert(0, str(Path(__file__).parent))
from dense import PublishedModel, published_loss
from measure import interleaved, peak_above

from trainer.config import parse_spec
from trainer.data.datasets import load
from trainer.data.graph import Graph
from trainer.errors import TrainerError
from trainer.files.documents import apply_overrides
from trainer.loss import nml_loss
from trainer.loss.nml import nml_terms
from trainer.loss.tiled import TileMemory
from trainer.methods import build_method
from trainer.nn import products
from trainer.presets import preset_document
from trainer.spec.data import DataSpec, SyntheticSpec

DIM, TAU, REG = 512, 0.5, 3.0
NARROW = 64  # columns of a narrow metric's output
FORMS = {
    "dense": "dense autograd, both directions by themselves",
    "tiled": "tiled, nothing kept",
    "kept": "tiled, up to 1 GB kept from forward to backward",
    "epoch": "tiled, the same and z known from an earlier step",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2_708, 7_650])
    parser.add_argument("--skip-epoch", action="store_true")
    parser.add_argument(
        "--peak", nargs=3, metavar=("FORM", "STEP", "N"), help="internal: measure one peak and print it"
    )
    options = parser.parse_args()
    if options.peak:
        form, step, n = options.peak
        print(peak_above_inputs(form, step, int(n)))
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, d = {DIM}, medians of {options.repeats}\n")
    backend_benchmark()
    for n in options.sizes:
        loss_benchmark(n, options.repeats)
        width_benchmark(n, options.repeats)
    if not options.skip_epoch:
        epoch_benchmark(max(1, options.repeats - 2))


def inputs(n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    u, noise, h, g = (torch.randn(n, DIM, generator=generator) for _ in range(4))
    return [normalize(x) for x in (u, u + noise, h, g)]


def leaves(tensors: list[Tensor], step: str) -> list[Tensor]:
    """A metric step needs gradients in h and g, an encoder step in all four (as published: also through m)."""
    needs = (False, False, True, True) if step == "metric" else (True,) * 4
    return [x.detach().requires_grad_(need) for x, need in zip(tensors, needs, strict=True)]


def stepper(form: str, step: str, tensors: list[Tensor]) -> Callable[[], Tensor]:
    """Forward and backward of one form of the loss."""
    memory = TileMemory(1_024)

    def go() -> Tensor:
        x = leaves(tensors, step)
        if form == "dense":
            loss = published_loss(*x, tau=TAU, reg=REG)
        elif form == "tiled":
            loss = nml_loss(*x, tau=TAU, reg=REG)
        else:  # tiles kept from forward to backward and, in an epoch, exp(z) from step to step: u and v stay the same
            if form == "kept":
                memory.forget_z()
            u, v, h, g = x
            terms = nml_terms(u / TAU, v, h, g, memory=memory, with_nce=False)
            loss = terms.nml + REG * terms.kl
        loss.backward()
        return loss.detach()

    return go


def bare_products(step: str, tensors: list[Tensor]) -> Callable[[], None]:
    """The bare matrix products of the tiled form: 2 forward, 2 again in backward, 2 per pair of gradients."""
    u, v, h, g = tensors
    square = u.new_empty(len(u), len(u))
    tall = torch.empty_like(u)

    def go() -> None:
        for _ in range(2):
            torch.mm(h, g.T, out=square)
            torch.mm(u, v.T, out=square)
        for _ in range(1 if step == "metric" else 2):
            torch.mm(square, g, out=tall)
            torch.mm(square.T, h, out=tall)

    return go


def loss_benchmark(n: int, repeats: int) -> None:
    tensors = inputs(n)
    for step in ("metric", "encoder"):
        forms = {form: stepper(form, step, tensors) for form in FORMS}
        values = {form: go() for form, go in forms.items()}
        torch.testing.assert_close(values["tiled"], values["dense"], rtol=1e-5, atol=0)
        by_backend = {name: with_backend(name, forms["tiled"]) for name in ("onednn", "bfloat16")}
        seconds = interleaved({**forms, **by_backend, "products": bare_products(step, tensors)}, repeats)
        peaks = {form: _peak_in_child(form, step, n) for form in FORMS}
        print(f"N = {n:,}, {step} step")
        for name, form in {"blas": "tiled", "onednn": "onednn", "bfloat16": "bfloat16"}.items():
            over = seconds[form] / seconds["products"]
            print(f"  tiled, nothing kept, products by {name}: {over:.2f} of BLAS's bare products")
        for form, meaning in FORMS.items():
            faster, smaller = seconds["dense"] / seconds[form], peaks["dense"] / peaks[form]
            print(f"  {meaning:58} {faster:5.2f}× as fast, 1/{smaller:.1f} of the memory", flush=True)


def with_backend(name: str, go: Callable[[], object]) -> Callable[[], object]:
    def inside() -> object:
        with products.using(name):
            return go()

    return inside


def backend_benchmark() -> None:
    """The products of a tile by each backend, and which one a run would choose."""
    a, b, tile, total = (
        torch.randn(1_024, DIM),
        torch.randn(1_024, DIM),
        torch.empty(1_024, 1_024),
        torch.zeros(1_024, DIM),
    )

    def go() -> None:
        products.product(a, b.T, tile)
        products.add_product(total, tile, b)
        products.add_product(total, tile.T, a)

    seconds = interleaved({name: with_backend(name, go) for name in products.BACKENDS}, 20)
    ratios = ", ".join(f"{name} {seconds['blas'] / seconds[name]:.2f}" for name in products.BACKENDS)
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"Speed of a tile's three products beside BLAS ({capability}): {ratios}")
    print(f"A run would choose: {products.quickest(1_024)}\n")


def width_benchmark(n: int, repeats: int) -> None:
    """A metric step as in an epoch, with factors of the encoder's width and narrow ones."""
    u, v, h, g = inputs(n)
    narrow = [u, v, *(normalize(x[:, :NARROW]) for x in (h, g))]
    candidates = {
        "wide": stepper("epoch", "metric", [u, v, h, g]),
        "narrow": stepper("epoch", "metric", narrow),
        "encoder": stepper("kept", "encoder", narrow),
    }
    seconds = interleaved(candidates, repeats)
    print(f"N = {n:,}, metric step as in an epoch, metric.dim {NARROW} beside {DIM}: ", end="")
    print(f"{seconds['wide'] / seconds['narrow']:.2f}× as fast; ", end="")
    print(f"an encoder step takes {seconds['encoder'] / seconds['narrow']:.1f} of it\n", flush=True)


def _peak_in_child(form: str, step: str, n: int) -> int:
    command = [sys.executable, __file__, "--peak", form, step, str(n)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def peak_above_inputs(form: str, step: str, n: int) -> int:
    """Bytes of resident memory above the inputs while one step runs (Linux)."""
    tensors = inputs(n)
    stepper(form, step, inputs(64))()  # threads and libraries are in memory now
    return peak_above(stepper(form, step, tensors))


def photo() -> tuple[Graph, str]:
    """Amazon Photo where the data is, else a synthetic graph of the same size."""
    try:
        return load(DataSpec(name="photo")), "Photo"
    except TrainerError:
        spec = SyntheticSpec(nodes=7_650, classes=8, degree=31, features=745, active_features=250)
        return load(DataSpec(name="synthetic", synthetic=spec)), "a synthetic graph of Photo's size (Photo is not here)"


def epoch_benchmark(repeats: int) -> None:
    graph, what = photo()
    torch.manual_seed(0)
    document = preset_document("nml-official", "photo")
    candidates: dict[str, Callable[[], object]] = {}
    dense_x = graph.x.to_dense() if graph.x.layout == torch.sparse_csr else graph.x
    published = PublishedModel(dense_x, graph.edge_index, tau=0.5, alpha=0.1, lr=1e-4, inner_steps=5)
    candidates["published"] = published.epoch
    once, ours = "objective.inner_recompute=false", preset_document("nml", "photo")
    variants = {
        "published settings, encode once": (document, [once]),
        "published settings, encode once, nothing kept": (document, [once, "sampling.keep_mb=0"]),
        "published settings, re-encode": (document, []),
        "preset nml": (ours, []),
        f"preset nml, metric.dim {NARROW}": (ours, [f"metric.dim={NARROW}"]),
    }
    for name, (settings, overrides) in variants.items():
        candidates[name] = one_epoch(apply_overrides(settings, overrides), graph)
    seconds = interleaved(candidates, repeats)
    print(f"\nOne epoch (T_M = 5) on {what}, against the published way:")
    for name in variants:
        print(f"  {name}: {seconds['published'] / seconds[name]:.2f}× as fast")


def one_epoch(document: dict[str, object], graph: Graph) -> Callable[[], object]:
    """An epoch as a run takes it: with the backend that the run would choose."""
    spec = parse_spec(document)
    method = build_method(spec, graph)
    state = {"epoch": 0}

    def go() -> None:
        state["epoch"] += 1
        for views in method.views(state["epoch"]):
            method.step(views)

    return with_backend(products.quickest(1_024), go)


if __name__ == "__main__":
    main()
