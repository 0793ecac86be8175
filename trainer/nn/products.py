"""Matrix products by whichever library of this machine is quickest at them.

    blas      what torch.mm calls: MKL in the usual wheels, as quick as the processor allows on Intel's
    onednn    float32 through oneDNN, twice as quick as MKL on AMD processors with AVX-512
    bfloat16  oneDNN with operands rounded to bfloat16 and sums in float32, where the processor has instructions for
              it; on one that has none, float32 as in onednn. Only where a spec asks for it (`run.precision`)

The last digits of a product differ from one to the other, so a run chooses once, when it is planned (`quickest`), and
keeps its choice when it is resumed. Float64 always goes through BLAS. On a GPU `bfloat16` stands for TF32.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BACKENDS = ("blas", "onednn", "bfloat16")
PROBE_SECONDS = 0.1
PROBE_SHAPE = (512, 512, 256)  # rows, columns and width: enough to tell, and many trials in that time
SMALL_TILE = 512  # rows or columns below which a run has nothing to gain
WORTH_CHANGING = 1.5  # times as quick as BLAS: equal runs must choose alike, and known processors give 0.8 to 1.1 or 2

_backend: ContextVar[str] = ContextVar("products", default="blas")


def _onednn() -> Callable[[Tensor, Tensor], Tensor] | None:
    """x, w -> x wᵀ through oneDNN in float32, which torch has under private names only; None where it has not."""
    try:
        linear = torch.ops.mkldnn._linear_pointwise.default
    except (AttributeError, RuntimeError):
        return None
    return lambda x, w: linear(x, w, None, "none", [], "")


_times_transposed = _onednn()


def available(backend: str) -> bool:
    """Whether this machine and this torch have it."""
    if backend == "onednn":
        return _times_transposed is not None and torch.backends.mkldnn.is_available()
    return backend == "blas" or (backend == "bfloat16" and torch.backends.mkldnn.is_available())


@contextmanager
def using(backend: str) -> Iterator[None]:
    """Products inside are computed by `backend`, or by BLAS where it is not available."""
    token = _backend.set(backend if available(backend) else "blas")
    try:
        yield
    finally:
        _backend.reset(token)


def quickest(side: int) -> str:
    """The quicker of the two float32 backends for a run with tiles of this side.

    Takes about a tenth of a second. Each is judged by its best time, in turns, so that a busy machine wrongs neither,
    and always on the same products, so that the choice depends on the machine alone.
    """
    if side < SMALL_TILE or not available("onednn"):
        return "blas"
    rows, columns, width = PROBE_SHAPE
    a, b, weight = torch.ones(rows, width), torch.ones(columns, width), torch.ones(rows, columns)
    gradient, best = torch.zeros(rows, width), {"blas": float("inf"), "onednn": float("inf")}
    until = time.perf_counter() + PROBE_SECONDS
    for turn in itertools.count():
        for backend in best:
            with using(backend):
                start = time.perf_counter()
                product(a, b.T, weight)
                add_product(gradient, weight, b)
                if turn:  # the first loads libraries and touches memory
                    best[backend] = min(best[backend], time.perf_counter() - start)
        if turn and time.perf_counter() > until:
            break
    return "onednn" if best["onednn"] * WORTH_CHANGING < best["blas"] else "blas"


def product(a: Tensor, b: Tensor, out: Tensor | None = None, *, exact: bool = False) -> Tensor:
    """a b, in `out` where the backend can write there.

    exact: in float32 at least, also where the run's products are rounded to bfloat16.
    """
    backend = _backend_for(a, exact)
    if backend == "onednn" and _times_transposed is not None:
        return _times_transposed(a, b.T)
    with _rounding(backend):
        return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)


def add_product(out: Tensor, a: Tensor, b: Tensor, *, exact: bool = False) -> None:
    """out += a b; `exact` as in `product`."""
    backend = _backend_for(a, exact)
    if backend == "onednn" and _times_transposed is not None:
        out.add_(_times_transposed(a, b.T))
        return
    with _rounding(backend):
        out.addmm_(a, b)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a b with gradients, for dense layers."""
    if _backend.get() == "blas":
        return a @ b
    result: Tensor = _Product.apply(a, b)
    return result


def _backend_for(a: Tensor, exact: bool) -> str:
    backend = _backend.get()
    if a.dtype != torch.float32:
        return "blas"
    if backend == "bfloat16":
        return "blas" if exact else backend
    return "blas" if a.is_cuda else backend


@contextmanager
def _rounding(backend: str) -> Iterator[None]:
    """Lets float32 products round their operands, where `backend` is bfloat16."""
    if backend != "bfloat16":
        yield
        return
    backends: Any = torch.backends  # whose stubs know nothing of precisions
    settings = [(backends.mkldnn.matmul, "bf16")]
    if torch.cuda.is_available():
        settings.append((backends.cuda.matmul, "tf32"))
    before = [where.fp32_precision for where, _ in settings]
    for where, precision in settings:
        where.fp32_precision = precision
    try:
        yield
    finally:
        for (where, _), precision in zip(settings, before, strict=True):
            where.fp32_precision = precision


class _Product(torch.autograd.Function):
    """Forward and both gradients by the backend that is in use."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return product(a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        wants_a, wants_b = ctx.needs_input_grad
        return product(gradient, b.T) if wants_a else None, product(a.T, gradient) if wants_b else None
