"""MVGRL (methods 4.3; Hassani & Khasahmadi, Contrastive Multi-View Representation Learning on Graphs, ICML 2020).

    h¹ = σ(Â X W₁ + b₁),  h² = σ(Π X W₂ + b₂),  Π = a (I − (1−a) Â)⁻¹;   h³, h⁴ the same of row-shuffled X
    g¹ = sigmoid(mean_i h¹_i),  g² = sigmoid(mean_i h²_i),  f(h, g) = hᵀ W g + b
    L = BCE( [f(h²,g¹), f(h¹,g²)] → 1,  [f(h⁴,g¹), f(h³,g²)] → 0 ),  mean over 4N logits

Nodes of one view against the summary of the other; the embedding is h¹ + h². Π is never stored: a product with it is 20
power iterations (error below 1.2 %, trainer.nn.sparse), so memory is O(N dim + E) where the published code has N × N.
Every step sees the whole graph and all nodes, as in the DGL port; the published steps on windows of 2,000 nodes, and
what it does to Π for CiteSeer (a threshold, columns scaled to [0, 1]), are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from trainer.methods.interface import Document, Learner, Loss, Method, Scope, Step, StepSize

if TYPE_CHECKING:
    from torch import Tensor

EPOCHS = {"cora": 500, "citeseer": 200}  # of the DGL port; the rest are stopped by patience


class Mvgrl(Method):
    """Tell nodes from shuffled ones by the summary of the other view."""

    name: Literal["mvgrl"] = "mvgrl"

    title: ClassVar[str] = "MVGRL"
    paper: ClassVar[str] = "Contrastive Multi-View Representation Learning on Graphs, ICML 2020"
    summary: ClassVar[str] = "edges against diffusion, no node-node negatives; whole graphs only"
    scopes: ClassVar[tuple[Scope, ...]] = ("whole",)

    @classmethod
    def preset(cls, dataset: str) -> Document:
        """The published encoder and rate; what is not a citation graph takes the settings for those."""
        is_citation = dataset in ("cora", "citeseer", "pubmed")
        known = is_citation or dataset in ("photo", "computers", "wikics", "cs", "physics")
        document: Document = {
            "encoder": {"dim": 512, "layers": 1, "last_activation": "prelu", "diffusion": "ppr"},
            "optimiser": {
                "epochs": EPOCHS.get(dataset, 500 if known else 100), "lr": 1e-3, "patience": 20,
                "weight_decay": 1e-3 if dataset == "citeseer" else 0.0,
            },
        }  # fmt: skip
        return document | ({"data": {"features": "rownorm"}} if is_citation else {})

    def published(self, dataset: str, num_nodes: int) -> Document:
        if dataset not in ("cora", "citeseer", "pubmed"):
            return {}
        return {"optimiser.lr": 1e-3, "optimiser.weight_decay": 1e-3 if dataset == "citeseer" else 0.0}

    def check(self, spec: Any) -> None:
        if spec.encoder.diffusion != "ppr" or not spec.encoder.layers:
            raise ValueError(
                "mvgrl contrasts edges with diffusion: set encoder.diffusion to ppr and encoder.layers to 1 or more"
            )

    # Memory

    def parameters(self, size: StepSize) -> int:
        """The discriminator, and the second encoder."""
        return size.dim * size.dim + 1 + size.parameters

    def step_bytes(self, size: StepSize) -> float:
        """Shuffled rows, and what a power iteration holds at a time: start, product, sum, and a message."""
        return 6.0 * size.number * size.rows * size.dim

    def tile_bytes(self, size: StepSize) -> float:
        return 0

    # Training

    def build(self, learner: Learner) -> None:
        from trainer.nn.discriminator import Discriminator

        learner.parts["discriminator"] = Discriminator(
            learner.encoder.dim, generator=learner.generator("discriminator")
        )

    def encode(self, learner: Learner, step: Step) -> tuple[Tensor, ...]:
        """h¹, h², h³, h⁴."""
        import torch

        from trainer.nn.encoder import diffused
        from trainer.nn.sparse import Shuffled
        from trainer.nn.views import View

        encoder, noise = learner.encoder, step.views.noise
        x, clean = learner.encoding.x, learner.encoding.clean
        order = torch.randperm(len(step.views.nodes), generator=learner.generator("shuffle", step.epoch))
        order = order.to(learner.device)
        edges, diffusion = clean.adjacency(0), diffused(clean).adjacency(0)
        first, second = encoder, encoder.diffused
        return (
            first.over_edges(x, View((edges,)), noise),
            second.over_edges(x, View((diffusion,)), noise),
            first.over_edges(x, View((Shuffled(edges, order), edges)), noise),
            second.over_edges(x, View((Shuffled(diffusion, order), diffusion)), noise),
        )

    def loss(self, learner: Learner, step: Step) -> Loss:
        import torch
        from torch.nn.functional import softplus

        score = learner.parts["discriminator"]
        h1, h2, h3, h4 = step.embeddings
        g1, g2 = h1.mean(0).sigmoid(), h2.mean(0).sigmoid()
        real = torch.cat([score(h2, g1), score(h1, g2)])
        fake = torch.cat([score(h4, g1), score(h3, g2)])
        loss = (softplus(-real).mean() + softplus(fake).mean()) / 2
        told = float(torch.cat([real > 0, fake < 0]).double().mean())
        return Loss(loss, {"loss": float(loss.detach()), "told_apart": told})
