"""The sections `optimiser`, `sampling` and `run`: how long, in which pieces and where a run trains."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trainer.spec.base import PRINTABLE, Spec

DEFAULT_TILE = 1_024  # 4 MB in float32: a few stay in the last-level cache while products run at full speed
DEFAULT_KEEP_MB = 1_024


class OptimiserSpec(Spec):
    """How the encoder, and what the method trains with it, is optimised."""

    epochs: int = Field(100, ge=1, le=1_000_000, description="T_E: outer iterations, one encoder step each")
    lr: float = Field(5e-4, gt=0, le=1, description="learning rate of the encoder")
    lr_scaling: Literal["linear", "none"] = Field(
        "linear",
        description="linear: of k steps in an epoch each takes lr / k, so that lr and epochs mean the same in every "
        "scope; none: each takes lr",
    )
    weight_decay: float = Field(0.0, ge=0, le=1, description="L2 on the encoder")
    kind: Literal["adam", "adamw"] = Field(
        "adam", description="adam adds weight decay to the gradient, adamw to the step"
    )
    schedule: Literal["constant", "cosine"] = Field("constant", description="cosine: lr falls to 0 at the last epoch")
    warmup_epochs: int = Field(0, ge=0, le=1_000_000, description="epochs over which lr rises from 0")
    patience: int | None = Field(
        None, ge=1, le=1_000_000,
        description="stop after so many epochs without a lower loss, and export the encoder of the best; none: never",
    )  # fmt: skip


class SamplingSpec(Spec):
    """Which negatives an anchor meets, and how much of the graph and of the similarities is in memory at once.

    What is None is chosen before the run from the memory there is (trainer.planning.plan) and written to plan.json.
    """

    negatives: Literal["batch", "bank", "graph"] | None = Field(
        None,
        description="batch: seeds of a batch against each other; bank: against the latest embeddings of all nodes; "
        "graph: every node against every node, exactly; none: graph where time and memory allow, else batch",
    )
    batch_size: int | None = Field(
        None, ge=2, le=1_000_000, description="seed nodes encoded at a time; none: chosen, or all of them if they fit"
    )
    num_neighbors: tuple[Annotated[int, Field(ge=-1, le=10_000)], ...] | None = Field(
        None, max_length=8, description="in-neighbours sampled per hop, -1 for all; none: 10 per hop, all if exact"
    )
    backend: Literal["csr", "torch-sparse", "pyg-lib"] = Field(
        "csr", description="neighbour sampler; csr is ours and gives the same batches on every machine"
    )
    loader_workers: int = Field(0, ge=0, le=64, description="processes that sample ahead; batches stay the same")
    scale: Literal["graph", "scope"] = Field(
        "graph", description="N in the factor (N-1) of the loss and of α: all nodes, or the negatives an anchor meets"
    )
    tile: int | None = Field(
        None, ge=1, le=65_536, description="side of a tile; none: 1024. Memory: 12-20 bytes × tile²"
    )
    keep_mb: int | None = Field(
        None, ge=0, le=1_000_000,
        description="megabytes of exp-similarities kept instead of recomputed; 0 recomputes all, none: 1024 if there "
        "is room. Results do not change",
    )  # fmt: skip

    @model_validator(mode="after")
    def _fan_out_is_useful(self) -> SamplingSpec:
        if self.num_neighbors is not None and 0 in self.num_neighbors:
            raise ValueError("num_neighbors holds a 0, which samples nothing; use -1 for all neighbours")
        return self


class RunSpec(Spec):
    """Seed, machine and book-keeping; of it only seed, dtype and precision change what is learned."""

    seed: int = Field(0, ge=0, lt=2**31, description="seed of initial weights, views and noise")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda if there is one")
    dtype: Literal["float32", "float64"] = Field("float32", description="float64 is for tests")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="bfloat16 rounds the operands of large products where the machine is faster so"
    )
    threads: int | None = Field(None, ge=1, le=1_024, description="CPU threads; none: torch's choice")
    checkpoint_every: int = Field(10, ge=1, le=1_000_000, description="epochs between checkpoints")
    checkpoint_minutes: float = Field(
        10, gt=0, le=100_000, description="longest time without a checkpoint where an epoch has many steps"
    )
    keep_checkpoints: int = Field(2, ge=1, le=100, description="newest checkpoints kept")
    diagnose_every: int = Field(1, ge=0, le=1_000_000, description="epochs between looks at the weights; 0: never")
    workers: int = Field(
        1, ge=1, le=256, description="data-parallel processes on Ray Train; k of them act as one with k × batch_size"
    )
    export: bool = Field(
        True,
        description="false: no embeddings and no final evaluation, only checkpoints and metrics.json: what trials of a "
        "sweep do",
    )
    track: bool = Field(True, description="report to MLflow")
    experiment: str = Field("nml-gcl", min_length=1, max_length=200, pattern=PRINTABLE, description="MLflow experiment")
    name: str | None = Field(
        None, max_length=200, pattern=PRINTABLE, description="a name for people; none: data set and hash"
    )
