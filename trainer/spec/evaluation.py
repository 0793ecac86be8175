"""The section `evaluation`: how embeddings are judged."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trainer.spec.base import Spec


class EvaluationSpec(Spec):
    """How embeddings are judged after training. Labels choose nothing but the probe's own L2 and stopping epoch."""

    protocol: Literal["clean", "bgrl20", "pygcl_swap"] = Field(
        "clean",
        description="clean: public split or random 10/10/80; bgrl20: random, the probe trains on 20 %; pygcl_swap: "
        "10/80/10; the last two only to compare with published numbers",
    )
    split_seed: int | None = Field(None, ge=0, lt=2**31, description="seed of a random split; none: the run's seed")
    probe_epochs: int = Field(3_000, ge=1, le=100_000, description="longest training of the linear probe")
    probe_lr: float = Field(1e-2, gt=0, le=1, description="Adam learning rate of the linear probe")
    l2_normalise: bool = Field(False, description="unit rows before the probe")
    cluster_seeds: int = Field(10, ge=1, le=100, description="k-means repetitions, each with 10 initialisations")
    max_pairs_nodes: int = Field(
        50_000, ge=2, le=10_000_000, description="above this many nodes, pair figures use a seeded sample of that size"
    )
    max_probe_nodes: int = Field(
        20_000, ge=100, le=100_000_000, description="above this many training (or validation) nodes, a seeded sample"
    )
    max_cluster_nodes: int = Field(
        100_000, ge=100, le=100_000_000, description="above this many labelled nodes, k-means sees a seeded sample"
    )
    figures: bool = Field(True, description="draw figures/*.png")
    watch_every: int = Field(
        0, ge=0, le=1_000_000,
        description="epochs between looks at the embedding while training (validation accuracy, link AUC); the last is "
        "always looked at. 0: never. Changes nothing that is learned",
    )  # fmt: skip
