"""NML-GCL (methods section 2; Negative Metric Learning for Graphs, IJCAI 2025): negatives weighted by a learned metric.

    L_i = −log[ e^{z_ii/τ} / (e^{z_ii/τ} + (N−1) Σ_j m_ij e^{z_ij/τ}) ] + a KL(P0 ‖ m_i),   m_ij = softmax_j(s_ij)

Algorithm 1, per step: draw two views, encode them once, take T_M metric steps on the detached embeddings (so their
similarities never change and are kept where there is room), then one encoder step on the same embeddings with M frozen.
A step sees the whole graph, or a batch of it (trainer.encoding); its anchors meet each other or a bank (`negatives`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, cast

from pydantic import Field, model_validator

from trainer.errors import InvalidInput
from trainer.methods.interface import PAPER_RATES, Document, Learner, Loss, Method, Scope, Step, StepSize
from trainer.spec.base import Spec
from trainer.spec.metric import MAX_METRIC_SCALE, METRIC_PIECE, MetricSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from trainer.loss.contrast import MetricContrast

DIAGNOSED_ANCHORS = 512
_BANK_ROWS = 65_536  # trainer.loss.bank
_ROWWISE = 64 << 20  # trainer.loss.rowwise
_COSINES = ("siamese_cos", "siamese_negcos", "two_tower")


class RegSpec(Spec):
    """Strength of KL(P0 ‖ P_i), in the unit that `scale` names."""

    coefficient: float = Field(3.0, ge=0, le=1e6, description="α if scale=n_minus_1, the total a if scale=one")
    scale: Literal["n_minus_1", "one"] = Field(
        "one", description="n_minus_1: total = α(N−1), the paper's unit; one: coefficient is the total a"
    )

    @model_validator(mode="after")
    def _unit_is_plausible(self) -> RegSpec:
        if self.scale == "n_minus_1" and self.coefficient > 10:
            raise ValueError(
                f"coefficient {self.coefficient:g} as α (the paper searches [0, 1]) would be multiplied by N−1; "
                "use scale=one if you mean the total KL coefficient a"
            )
        return self

    def total(self, n: int) -> float:
        """The coefficient a of KL for n nodes."""
        return self.coefficient * (n - 1) if self.scale == "n_minus_1" else self.coefficient


class Published(NamedTuple):
    """One column of the paper's table of settings."""

    lr: float
    weight_decay: float
    temperature: float
    epochs: int  # T_E
    inner_steps: int  # T_M
    alpha: float
    edge_drop: float = 0.4


PUBLISHED = {
    "cora": Published(5e-4, 1e-3, 0.8, 200, 2, 0.1),
    "citeseer": Published(5e-4, 5e-3, 0.7, 50, 3, 0.1),
    "pubmed": Published(5e-4, 0.0, 0.5, 150, 3, 0.05),
    "photo": Published(1e-4, 0.0, 0.5, 50, 5, 0.1),
    "computers": Published(5e-4, 0.0, 0.4, 50, 8, 0.1),
    "wikics": Published(5e-4, 0.0, 0.5, 50, 6, 0.2, edge_drop=0.2),  # the paper says 0.4, the code 0.2
}


def official(dataset: str) -> Document:
    """The published configuration to the letter (methods 2.5-2.6: the authors' code where it differs from the paper),
    except that embeddings are always taken in eval mode."""
    values = PUBLISHED.get(dataset)
    if values is None:
        raise InvalidInput(
            f"nml-official has no published settings for {dataset}, only for {', '.join(PUBLISHED)}. Use --preset nml."
        )
    return {
        "augment": {"edge_drop": [values.edge_drop] * 2, "feature_mask": [0.1, 0.1]},
        "encoder": {"hidden": 512, "dim": 512, "layers": 2, "activation": "rrelu_random"},
        "method": {
            "metric": {
                "kind": "siamese_cos", "hidden": 512, "hidden_layers": 1, "input": "raw", "activation": "rrelu_random",
                "scale": 1.0, "learn_scale": False,
            },
            "temperature": values.temperature, "reg": {"coefficient": values.alpha, "scale": "n_minus_1"},
            "inner_steps": values.inner_steps, "inner_recompute": True, "detach_metric": False,
            "metric_weight_decay": values.weight_decay,
        },
        "optimiser": {"epochs": values.epochs, "lr": values.lr, "weight_decay": values.weight_decay},
    }  # fmt: skip


class NegativeMetricLearning(Method):
    """L_NML + a KL, and the turns in which M and the encoder minimise it (Algorithm 1)."""

    name: Literal["nml"] = "nml"
    temperature: float = Field(
        0.5, gt=0.025, le=10, description="τ: below 0.025 float32 overflows, see design section 3"
    )
    reg: RegSpec = RegSpec()
    inner_steps: int = Field(5, ge=0, le=100, description="T_M: metric steps per epoch; ignored where M has no weights")
    inner_recompute: bool = Field(
        False, description="re-encode the views with fresh noise before each metric step, as the published code does"
    )
    detach_metric: bool = Field(True, description="encoder step treats the weights as constants (half the products)")
    metric: MetricSpec = MetricSpec()
    metric_lr: float | None = Field(None, gt=0, le=1, description="learning rate of M; none: as the encoder's")
    metric_weight_decay: float = Field(0.0, ge=0, le=1, description="L2 on M")

    title: ClassVar[str] = "NML-GCL"
    paper: ClassVar[str] = "Negative Metric Learning for Graphs, IJCAI 2025"
    summary: ClassVar[str] = "negatives weighted by a learned metric; scales from exact N×N to millions of nodes"
    scopes: ClassVar[tuple[Scope, ...]] = ("whole", "cached", "batch", "bank")
    teams: ClassVar[bool] = True

    @classmethod
    def preset(cls, dataset: str) -> Document:
        """Our settings: the spec's defaults, with the published schedule where there is one."""
        values = PUBLISHED.get(dataset)
        if values is None:
            return {}
        return {
            "method": {"temperature": values.temperature, "inner_steps": values.inner_steps},
            "optimiser": {"epochs": values.epochs, "lr": values.lr, "weight_decay": values.weight_decay},
            "augment": {"edge_drop": [values.edge_drop] * 2},
        }

    def space(self) -> dict[str, Document]:
        """The paper's table (methods 7) for what matters to this metric.

        The KL coefficient is in its own unit: α in [0, 1] as in the paper, or the total a where the metric is alive
        (methods 2.4). Weight decay 0 is added to the paper's grid, since its own settings use it.
        """
        in_paper = self.reg.scale == "n_minus_1"
        alpha: Document = (
            {"kind": "uniform", "low": 0, "high": 1} if in_paper else {"kind": "loguniform", "low": 0.3, "high": 300}
        )
        metric: dict[str, Document] = {}
        if self.metric.kind not in ("uniform", "cosine"):
            metric["method.reg.coefficient"] = alpha
        if self.has_network:
            metric["method.inner_steps"] = {"kind": "integer", "low": 1, "high": 10}
        return metric | {
            "method.temperature": {"kind": "uniform", "low": 0.1, "high": 1},
            "optimiser.epochs": {"kind": "choice", "values": (50, 100, 150, 200)},
            "optimiser.lr": {"kind": "choice", "values": PAPER_RATES},
            "optimiser.weight_decay": {"kind": "choice", "values": (0.0, *PAPER_RATES)},
        }

    def published(self, dataset: str, num_nodes: int) -> Document:
        paper = PUBLISHED.get(dataset)
        if paper is None:
            return {}
        factor = 1 if self.reg.scale == "n_minus_1" else num_nodes - 1
        return {
            "method.reg.coefficient": paper.alpha * factor, "method.inner_steps": paper.inner_steps,
            "method.temperature": paper.temperature, "optimiser.epochs": paper.epochs, "optimiser.lr": paper.lr,
            "optimiser.weight_decay": paper.weight_decay,
        }  # fmt: skip

    def check(self, spec: Any) -> None:
        kappa = 1.0
        if self.metric.kind in _COSINES:
            kappa = MAX_METRIC_SCALE if self.metric.learn_scale else self.metric.scale
        limit = 87 if spec.run.dtype == "float32" else 700
        if 2 * (kappa + 1 / self.temperature) >= limit:
            raise ValueError(
                f"temperature {self.temperature:g} with a metric scale of up to {kappa:g} overflows "
                f"{spec.run.dtype}: 2(κ + 1/τ) must stay below {limit}. Raise method.temperature"
            )
        alone = spec.run.workers == 1 and spec.sampling.negatives != "bank"
        if self.metric.kind in ("pair_mlp", "closed_form") and not alone:
            raise ValueError(
                f"method.metric.kind {self.metric.kind} looks at single pairs and cannot use a bank or several "
                "workers. Choose siamese_negcos, or sampling.negatives=batch with run.workers=1"
            )

    @classmethod
    def presets(cls) -> dict[str, Callable[[str], Document]]:
        return {"nml": cls.preset, "nml-official": official}

    def tags(self) -> dict[str, str]:
        return {"metric": self.metric.kind}

    @property
    def has_network(self) -> bool:
        """Whether M has weights to learn."""
        return self.metric.kind not in ("uniform", "cosine", "closed_form")

    # Memory

    def parameters(self, size: StepSize) -> int:
        k, d, inner, out = self.metric.hidden, size.dim, self.metric.hidden_layers - 1, self.metric.out_dim
        towers = {"two_tower": 2, "siamese_cos": 1, "siamese_negcos": 1, "pair_mlp": 2}.get(self.metric.kind, 0)
        return towers * (d * k + inner * k * k + k * out)

    def state_bytes(self, size: StepSize) -> float:
        """trainer.loss.bank: two tables, and the metric's outputs on them for this step and the one before."""
        if size.scope != "bank":
            return 0
        b, d, n = size.number, size.dim, size.nodes
        k = {"uniform": 0, "cosine": d}.get(self.metric.kind, self.metric.out_dim)
        return b * n * (2 * d + 4 * k) + (2 * b + 8) * n + b * min(n, _BANK_ROWS) * (2 * d + 6 * k)

    def step_bytes(self, size: StepSize) -> float:
        """The metric's step or the encoder's, whichever holds more, or the diagnosis after them.

        Unit rows of both views, the metric's layers with what autograd keeps, and gradients.
        """
        b, d, k, out, n, m = size.number, size.dim, self.metric.hidden, self.metric.out_dim, size.rows, size.columns
        metric, hidden_layers = self.metric, self.metric.hidden_layers
        slopes = 3 if metric.activation == "rrelu_random" else 1
        learned = metric.kind in _COSINES
        block = 0.0
        if learned:
            inputs = 2 * d if metric.input == "unit" else 0
            layers = 2 * (1 + slopes) * hidden_layers * k + 5 * out  # before and after each activation; unit, scaled
            metric_step = 2.0 * d + inputs + layers + 5 * out + k
            encoder_step = 9.0 * d + 2 * out if self.detach_metric else 8 * d + inputs + layers + 3 * out + k
            if n > METRIC_PIECE and slopes == 1:  # factors_in_pieces: the layers of one piece, factors in two copies
                metric_step, encoder_step = 2.0 * d + 10 * out, 9.0 * d + 4 * out
                block = b * METRIC_PIECE * (inputs + layers)
        elif metric.kind == "uniform":
            metric_step, encoder_step = 0.0, 9.0 * d
        else:
            metric_step, encoder_step = 0.0, 12.0 * d
            if metric.kind != "cosine":
                pair = 24 if metric.kind == "closed_form" else 8 * k * hidden_layers
                block = 2.5 * max(_ROWWISE, m * pair)  # a block of rows, its gradient, and what is added up
        steps = b * n * max(metric_step, encoder_step) + block
        if size.workers > 1:  # gathered from all workers, with gradients
            steps += 2 * b * m * (d + (out if learned else 0))
        diagnosis = 0.0
        if size.diagnoses:
            width = 2 * (k + out) if learned else 2 * d
            diagnosis = b * (5 * min(DIAGNOSED_ANCHORS, n) * m + n * (2 * d + width)) + 64 * m
        return max(steps, diagnosis)

    def tile_bytes(self, size: StepSize) -> float:
        """trainer.loss.tiled: four buffers of a tile, and kept exponentials of z and s as far as there is room."""
        if self.metric.kind in ("pair_mlp", "closed_form"):
            return 0
        scratch = super().tile_bytes(size)
        if size.scope == "bank":
            return scratch
        both = 1 if self.metric.kind == "uniform" else 2
        return scratch + min(size.keep, both * size.number * size.rows * size.columns)

    # Training

    def build(self, learner: Learner) -> None:
        from trainer.loss.bank import Bank
        from trainer.loss.contrast import MetricContrast
        from trainer.nn.metric import build_metric

        sampling, n, width = learner.spec.sampling, learner.graph.num_nodes, learner.spec.encoder.dim
        scoped = n if sampling.batch_size is None else min(n, sampling.batch_size * learner.team.size)
        counted = n if sampling.scale == "graph" or sampling.negatives != "batch" else scoped
        reg = self.reg.total(counted)
        metric = build_metric(width, self.metric, reg=reg, factor=counted - 1, generator=learner.generator("metric"))
        learner.parts["contrast"] = MetricContrast(
            metric, Bank(n, width) if sampling.negatives == "bank" else None, tau=self.temperature,
            factor=counted - 1, reg=reg, tile=sampling.tile, tiles=learner.tiles, team=learner.team,
        )  # fmt: skip

    def inner_optimisers(self, learner: Learner, share: float) -> dict[str, torch.optim.Optimizer]:
        import torch

        learned = _contrast(learner).learned
        if not learned:
            return {}
        lr = share * (self.metric_lr or learner.spec.optimiser.lr)
        return {"metric": torch.optim.Adam(learned, lr=lr, weight_decay=self.metric_weight_decay)}

    def before_epoch(self, learner: Learner, epoch: int) -> None:
        """Before the first step, every row of the bank from the untrained encoder."""
        import torch

        contrast = _contrast(learner)
        if contrast.bank is not None and not contrast.bank.is_full:
            with torch.no_grad():
                for views in learner.encoding.pairs(0):
                    contrast.refresh_bank(views.nodes, *views.encode())

    def encode(self, learner: Learner, step: Step) -> tuple[Tensor, ...]:
        contrast, views = _contrast(learner), step.views
        u, v = views.encode()
        if contrast.bank is not None:
            contrast.bank.step += 1
            contrast.refresh_bank(views.nodes, u, v)
        step.notes["bank"] = contrast.weigh_bank(views.noise)
        return u, v

    def inner(self, learner: Learner, step: Step) -> None:
        import torch

        contrast, optimiser = _contrast(learner), learner.optimisers.get("metric")
        if optimiser is None:
            return
        for number in range(self.inner_steps):
            if number and self._reencodes(learner):
                with torch.no_grad():
                    _encode_again(learner, step)
            u, v = (part.detach() for part in step.embeddings)
            with contrast.learning():
                terms = contrast.terms(u, v, step.views.noise, step.notes["bank"])
                optimiser.zero_grad(set_to_none=True)
                terms.total(contrast.reg).backward()
                learner.team.sum_gradients(contrast.learned)
            optimiser.step()
            contrast.metric.after_step()

    def loss(self, learner: Learner, step: Step) -> Loss:
        import torch

        contrast = _contrast(learner)
        if self.inner_steps and self._reencodes(learner):
            _encode_again(learner, step)
        u, v = step.embeddings
        terms = contrast.terms(
            u, v, step.views.noise, step.notes["bank"], detach_metric=self.detach_metric, with_nce=True
        )
        nml, kl, nce = learner.team.total(torch.stack([term.detach() for term in terms])).tolist()
        columns = contrast.columns(len(u))
        metrics = {
            "loss": nml + contrast.reg * kl, "nml": nml, "kl": kl, "reg": contrast.reg * kl,
            "i_nml": math.log(contrast.factor + 1) - nml, "i_nce": math.log(columns) - nce,
        }  # fmt: skip
        scale = getattr(contrast.metric, "scale", None)
        if scale is not None:
            metrics["metric_scale"] = float(scale.detach())
        if contrast.bank is not None:
            metrics["bank_staleness"] = contrast.bank.staleness()
        return Loss(terms.total(contrast.reg), metrics)

    def diagnose(self, learner: Learner, step: Step) -> Mapping[str, float]:
        """Mean weight, in units of the uniform one, on self, false and true negatives (methods 5.5).

        For a fixed sample of anchors against the nodes this worker holds; in scope `bank`, against the bank.
        """
        import torch

        from trainer.loss.weights import weight_report

        contrast, nodes = _contrast(learner), step.views.nodes
        u, v = (part.detach() for part in step.embeddings)
        chosen = torch.randperm(len(nodes), generator=learner.generator("anchors"))[:DIAGNOSED_ANCHORS]
        found = contrast.weights_of(chosen, nodes, u, v, step.notes["bank"])
        labels = learner.graph.y
        if labels is not None and contrast.bank is None:
            labels = labels[nodes]
        return weight_report(found.weights, found.cosine, found.own, labels)

    def _reencodes(self, learner: Learner) -> bool:
        return self.inner_recompute and learner.encoder.is_random


def _contrast(learner: Learner) -> MetricContrast:
    return cast("MetricContrast", learner.parts["contrast"])


def _encode_again(learner: Learner, step: Step) -> None:
    """The same views with fresh noise."""
    learner.tiles.forget_z()
    step.embeddings = step.views.encode()
