"""Matrix products by every backend: the same values, the same training, and a way out where one is missing."""

from __future__ import annotations

import json

import pytest
import torch

import trainer
from trainer.config import parse_spec, spec_hash
from trainer.loss import nml_loss
from trainer.nn import products
from trainer.nn.metric import build_metric
from trainer.planning.plan import make_plan, restore_plan
from trainer.planning.shape import GraphShape
from trainer.spec.metric import MetricSpec

SHAPES = [(64, 32, 64), (1, 7, 1), (333, 129, 65), (100, 512, 31)]
ERROR = {"blas": 1e-6, "onednn": 1e-6, "bfloat16": 1e-2}


@pytest.fixture(params=products.BACKENDS)
def backend(request):
    with products.using(request.param):
        yield request.param


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


def is_close(value, truth, error):
    return float((value.double() - truth).norm() / truth.norm()) < error


@pytest.mark.parametrize("n, d, m", SHAPES)
def test_products_of_plain_and_transposed_operands(backend, n, d, m):
    a, b = random(n, d), random(m, d)
    truth = a.double() @ b.double().T
    assert is_close(products.product(a, b.T), truth, ERROR[backend])
    assert is_close(products.product(a, b.T, torch.empty(n, m)), truth, ERROR[backend])
    assert is_close(products.product(a, b.T, exact=True), truth, 1e-6)
    for left, right in ((truth.float(), b), (truth.float().T, a)):
        total = torch.ones(len(left), d)
        products.add_product(total, left, right)
        assert is_close(total, 1 + left.double() @ right.double(), ERROR[backend])


def test_gradients_of_a_dense_layer(backend):
    a, b = random(50, 20).requires_grad_(), random(20, 30).requires_grad_()
    products.matmul(a, b).square().sum().backward()
    exact_a, exact_b = (x.detach().double().requires_grad_() for x in (a, b))
    (exact_a @ exact_b).square().sum().backward()
    assert is_close(a.grad, exact_a.grad, ERROR[backend])
    assert is_close(b.grad, exact_b.grad, ERROR[backend])


def test_float64_is_never_rounded(backend):
    a, b = random(40, 30, dtype=torch.float64), random(30, 20, dtype=torch.float64)
    torch.testing.assert_close(products.product(a, b), a @ b, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(products.matmul(a, b), a @ b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["blas", "onednn"])
def test_the_loss_by_each_float32_backend_is_as_near_to_float64(name):
    inputs = [torch.nn.functional.normalize(random(300 + k, 48)[:300]) for k in range(4)]
    exact = [x.double().requires_grad_() for x in inputs]
    nml_loss(*exact, tau=0.5, reg=3.0).backward()
    with products.using(name):
        leaves = [x.clone().requires_grad_() for x in inputs]
        nml_loss(*leaves, tau=0.5, reg=3.0, tile=128).backward()
    for leaf, truth in zip(leaves, exact, strict=True):
        assert is_close(leaf.grad, truth.grad, 2e-5)


def test_torch_still_has_the_private_name():
    """When this fails, torch has moved its oneDNN product: runs go on with BLAS; find the new name."""
    assert products._onednn() is not None


def test_without_onednn_everything_goes_through_blas(monkeypatch):
    monkeypatch.setattr(products, "_times_transposed", None)
    assert products.quickest(1_024) == "blas"
    a, b = random(30, 20), random(20, 10)
    with products.using("onednn"):
        torch.testing.assert_close(products.matmul(a, b), a @ b)
        torch.testing.assert_close(products.product(a, b), a @ b)


def test_precision_is_put_back_after_a_product():
    before = torch.backends.mkldnn.matmul.fp32_precision
    with products.using("bfloat16"):
        products.product(random(8, 8), random(8, 8))
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_quickest_takes_another_backend_only_for_a_clear_gain(monkeypatch):
    def add_product(out, a, b):
        clock[0] += seconds[products._backend.get()]

    clock = [0.0]
    monkeypatch.setattr(products.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(products, "product", lambda a, b, out: out)
    monkeypatch.setattr(products, "add_product", add_product)
    seconds = {"blas": 0.02, "onednn": 0.015}
    assert products.quickest(1_024) == "blas"
    seconds = {"blas": 0.02, "onednn": 0.01}
    assert products.quickest(1_024) == "onednn"
    assert products.quickest(100) == "blas"  # nothing to gain


def small(**changes):
    document = {
        "data": {"name": "synthetic", "synthetic": {"nodes": 300, "features": 32}},
        "encoder": {"hidden": 32, "dim": 32},
        "method": {"metric": {"hidden": 32}},
        "optimiser": {"epochs": 12},
        "evaluation": {"figures": False, "cluster_seeds": 1, "probe_epochs": 20},
        "run": {"track": False, "threads": 1},
    }
    return parse_spec(document | changes)


def curve(directory):
    events = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    return torch.tensor([event["metrics"]["loss"] for event in events if event["type"] == "epoch"])


def test_training_curves_of_both_float32_backends_agree(tmp_path, monkeypatch):
    for name in ("blas", "onednn"):
        monkeypatch.setattr(products, "quickest", lambda *_, name=name: name)
        trainer.fit(small(), run_dir=tmp_path / name)
        assert json.loads((tmp_path / name / "plan.json").read_text())["products"] == name
        assert f"products by {name}" in (tmp_path / name / "log.txt").read_text()
    torch.testing.assert_close(curve(tmp_path / "blas"), curve(tmp_path / "onednn"), rtol=1e-4, atol=1e-4)


def test_bfloat16_trains_and_is_another_run(tmp_path):
    rounded = small(run={"track": False, "threads": 1, "precision": "bfloat16"})
    trainer.fit(rounded, run_dir=tmp_path)
    assert json.loads((tmp_path / "plan.json").read_text())["products"] == "bfloat16"
    assert torch.isfinite(curve(tmp_path)).all()
    assert spec_hash(rounded) != spec_hash(small())


def test_a_resumed_plan_keeps_its_backend_and_an_old_one_means_blas():
    shape = GraphShape(nodes=300, edges=3_000, features=32, classes=5, nonzeros=None)
    plan = make_plan(small(), shape, 20 * 10**9)
    document = plan.document() | {"products": "onednn"}
    assert restore_plan(small(), document, shape).products == "onednn"
    del document["products"]
    assert restore_plan(small(), document, shape).products == "blas"


def test_a_narrow_metric_has_narrow_factors_and_another_hash():
    generator = torch.Generator().manual_seed(0)
    spec = MetricSpec(hidden=32, dim=8)
    metric = build_metric(16, spec, reg=3.0, generator=generator)
    h, g = metric(random(10, 16), random(11, 16))
    assert (h.shape, g.shape) == ((10, 8), (11, 8))
    assert spec_hash(small(method={"metric": {"hidden": 32, "dim": 8}})) != spec_hash(small())
    assert spec_hash(small(method={"metric": {"hidden": 32, "dim": None}})) == spec_hash(small())
