"""What a method is: closed settings, what it needs, and what it does at each point of a step (methods 1.6).

A method is one file with one `Method` in it. Fields are its settings in the spec. What the planner, the API and sweeps
ask (scopes, memory, presets, search space) is answered without torch; the hooks import torch when they are called.

    method.build(learner)              once: modules and tables beside the encoder, into learner.parts
    each epoch:
        method.before_epoch(…)         what is renewed now and then: clusters, mixtures, self-expression
        each step:
            method.encode(…)           embeddings of the step's views
            method.inner(…)            steps on anything but the encoder
            method.loss(…)             then the learner goes backward and steps the optimiser
            method.after_step(…)       moving averages, clamps
    learner.encoder                    what is exported, in eval mode on the clean graph
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from trainer.spec.base import Spec

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Document = dict[str, Any]
# whole: every node at once; cached: every node, encoded by batches with cached gradients; batch: sampled batches, each
# contrasted with itself; bank: sampled batches against the latest embeddings of all nodes
Scope = Literal["whole", "cached", "batch", "bank"]
PAPER_RATES = (1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 1e-1)  # methods 7


@dataclass(frozen=True)
class StepSize:
    """What a step's memory depends on, as the planner knows it before anything is loaded."""

    nodes: int
    edges: int
    features: int
    rows: int  # anchors that this process holds
    columns: int  # nodes that each of them is compared with
    dim: int  # width of an embedding
    number: int  # bytes of one
    parameters: int  # numbers in the encoder
    tile: int
    keep: int  # bytes of kept tiles
    scope: Scope
    workers: int
    diagnoses: bool


@dataclass
class Loss:
    """The scalar to step on (in a team: this worker's share of it), and figures of the step for the event log."""

    total: Tensor
    metrics: dict[str, float] = field(default_factory=dict)


class Views(Protocol):
    """What a step looks at: some nodes under the augmentations of `augment`, and as they are (trainer.encoding)."""

    nodes: Tensor  # [n] their ids, in the order of the embeddings' rows
    noise: torch.Generator  # for whatever draws in this step

    def encode(self, encoder: nn.Module | None = None) -> tuple[Tensor, Tensor]: ...

    def clean(self, encoder: nn.Module | None = None) -> Tensor: ...

    def neighbours(self) -> tuple[Tensor, Tensor]: ...

    def backward(self, loss: Tensor) -> None: ...


@dataclass
class Step:
    """One encoder step; `notes` is for what a method's hooks tell each other."""

    views: Views
    epoch: int  # from 1
    number: int  # steps taken before, since the run began
    embeddings: tuple[Tensor, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)


class Learner(Protocol):
    """The run as hooks see it (trainer.learning.learner): modules, graph, team."""

    spec: Any
    graph: Any
    team: Any
    encoder: Any
    parts: nn.ModuleDict
    tiles: Any  # kept tiles of the loss
    encoding: Any
    optimisers: dict[str, torch.optim.Optimizer]
    device: torch.device
    dtype: torch.dtype
    steps: int
    total_steps: int

    def generator(self, purpose: str, *place: int) -> torch.Generator: ...

    def encode_all(self, epoch: int, project: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]: ...


class Method(Spec, ABC):
    """One way of learning node embeddings."""

    name: str

    title: ClassVar[str]
    paper: ClassVar[str]
    summary: ClassVar[str]  # what it is good for, in a line
    scopes: ClassVar[tuple[Scope, ...]] = ("whole", "batch")
    teams: ClassVar[bool] = False  # whether run.workers may exceed 1
    learns: ClassVar[bool] = True  # false: a reference without training

    # Answers without torch

    @classmethod
    def preset(cls, dataset: str) -> Document:
        """The sections of a spec that suit this method on a data set (or on any other, by a name it does not know)."""
        return {}

    @classmethod
    def presets(cls) -> dict[str, Callable[[str], Document]]:
        """Named settings: a function of the data set each. The method's own name is always one of them."""
        return {cls.model_fields["name"].default: cls.preset}

    def space(self) -> dict[str, Document]:
        """The default search space of a sweep: dotted fields of the spec, each with a dimension (tuner.space)."""
        return {
            "optimiser.lr": {"kind": "choice", "values": PAPER_RATES},
            "optimiser.weight_decay": {"kind": "choice", "values": (0.0, *PAPER_RATES)},
        }

    def published(self, dataset: str, num_nodes: int) -> Document:
        """Settings of the method's paper for a data set, by dotted field: where a sweep starts beside its base."""
        return {}

    def check(self, spec: Any) -> None:
        """Refuse what this method cannot train together.

        Raises:
            ValueError: naming the field and what to write instead.
        """

    def parameters(self, size: StepSize) -> int:
        """Trained numbers beside the encoder's."""
        return 0

    def state_bytes(self, size: StepSize) -> float:
        """Tables and copies that stay from the first step on."""
        return 0

    def step_bytes(self, size: StepSize) -> float:
        """Beside the encoder's own activations: unit rows, projections, gradients; by default those of two views."""
        return 9.0 * size.dim * size.number * size.rows

    def tile_bytes(self, size: StepSize) -> float:
        """Buffers of the tiled loss (trainer.loss); by default four tiles of scratch."""
        return 4.0 * size.number * min(size.tile, size.rows) * min(size.tile, size.columns)

    def tags(self) -> dict[str, str]:
        """For the tracker, beside the method's name."""
        return {}

    # Hooks; torch is at hand here

    def build(self, learner: Learner) -> None:
        """Put modules and tables beside the encoder into `learner.parts`: checkpoints hold them, optimisers train what
        requires gradients."""

    def inner_optimisers(self, learner: Learner, share: float) -> dict[str, torch.optim.Optimizer]:
        """Optimisers that `inner` steps; their parameters must not require gradients outside of it.

        share: what of a learning rate a step takes (`optimiser.lr_scaling`).
        """
        return {}

    def before_epoch(self, learner: Learner, epoch: int) -> None:
        """Whatever is renewed before the first step of an epoch. A resumed epoch is not asked again."""

    def encode(self, learner: Learner, step: Step) -> tuple[Tensor, ...]:
        """Embeddings that the step's hooks share; by default of both augmented views."""
        return step.views.encode()

    def inner(self, learner: Learner, step: Step) -> None:
        """Solve the inner problem on these embeddings; must leave the encoder bit-identical."""

    @abstractmethod
    def loss(self, learner: Learner, step: Step) -> Loss:
        """What the encoder minimises."""

    def after_step(self, learner: Learner, step: Step) -> None:
        """Whatever follows the optimiser's step."""

    def diagnose(self, learner: Learner, step: Step) -> Mapping[str, float]:
        """Figures about a step that training does not need."""
        return {}
