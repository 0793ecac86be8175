"""What a run is: one closed, frozen document from which everything else follows.

Unknown keys are refused, every number is bounded, and `spec_hash` names the document: two runs with equal hashes train
the same thing. Nothing here imports torch, so the API process can validate a spec without loading it.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trainer.errors import InvalidInput

DatasetName = Literal[
    "digits", "synthetic", "files", "imported",
    "cora", "citeseer", "pubmed", "photo", "computers", "wikics", "cs", "physics",
]  # fmt: skip
MetricKind = Literal["siamese_cos", "siamese_negcos", "two_tower", "pair_mlp", "closed_form", "uniform", "cosine"]
Activation = Literal["relu", "prelu", "elu", "rrelu_mean", "rrelu_random"]
PRINTABLE = r"^[^\x00-\x1f\x7f-\x9f]*$"  # names reach terminals, where other characters are commands
MAX_METRIC_SCALE = 10.0  # κ; weights then differ by at most exp(20), and float32 still holds at τ = 0.03
DEFAULT_TILE = 1_024  # 4 MB in float32: a few stay in the last-level cache while products run at full speed
DEFAULT_KEEP_MB = 1_024
METRIC_PIECE = 8_192  # rows of which M's activations are kept at once (trainer.nn.metric); here for the estimate
Probability = Annotated[float, Field(ge=0, lt=1)]


class Spec(BaseModel):
    """A closed part of the document: unknown keys refused, values never change, NaN is not a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SyntheticSpec(Spec):
    """Degree-corrected planted partition with sparse, class-dependent features."""

    nodes: int = Field(2_000, ge=2, le=100_000_000, description="number of nodes")
    classes: int = Field(5, ge=1, le=1_000, description="planted communities, which are also the labels")
    degree: float = Field(10, gt=0, le=10_000, description="mean number of neighbours")
    homophily: float = Field(0.8, ge=0, le=1, description="share of edges that stay inside a community")
    degree_exponent: float = Field(
        2.5, gt=1.5, le=10, description="power law of expected degrees; larger is more even, below 1.5 one node has all"
    )
    features: int = Field(128, ge=1, le=100_000, description="number of feature columns")
    active_features: int = Field(16, ge=1, le=10_000, description="non-zero features drawn per node (with replacement)")
    signal: float = Field(0.3, ge=0, le=1, description="share of a node's features drawn from its own class's columns")
    seed: int = Field(0, ge=0, lt=2**63, description="the graph's own seed, apart from the run's")

    @model_validator(mode="after")
    def _fits(self) -> SyntheticSpec:
        if self.classes > self.nodes:
            raise ValueError(f"classes ({self.classes}) exceed nodes ({self.nodes}); lower classes")
        if self.features < self.classes:
            raise ValueError(
                f"features ({self.features}) must be at least classes ({self.classes}): each needs a column"
            )
        return self


class FilesSpec(Spec):
    """The user's own graph: one npz, or a table of nodes and a table of edges (CSV or Parquet, by file ending)."""

    npz: str | None = Field(None, description="npz with edge_index or adj_*, x or attr_*, optional y/labels and ids")
    nodes: str | None = Field(None, description="node table: an id column, an optional label column, numeric features")
    edges: str | None = Field(None, description="edge list: two columns of node ids and an optional weight")
    directed: bool = Field(False, description="false: each edge also counts in the other direction")
    id_column: str = Field("id", min_length=1, description="node table: column with the node's own id")
    label_column: str | None = Field("label", description="node table: column with labels, used only to evaluate")
    source_column: str = Field("source", min_length=1, description="edge list: column with the source id")
    target_column: str = Field("target", min_length=1, description="edge list: column with the target id")
    weight_column: str | None = Field("weight", description="edge list: column with positive weights, if it has one")
    drop_unknown: bool = Field(False, description="ignore edges whose ends are not in the node table, and count them")

    @model_validator(mode="after")
    def _one_source(self) -> FilesSpec:
        tables = self.nodes is not None and self.edges is not None
        partial = (self.nodes is None) != (self.edges is None)
        if partial or tables == (self.npz is not None):
            raise ValueError("give either npz, or both nodes and edges")
        return self


class DataSpec(Spec):
    """Which graph, and how its features enter the encoder."""

    name: DatasetName = Field("digits", description="a built-in or public set, `synthetic`, or `files` for your own")
    features: Literal["raw", "rownorm", "zscore"] = Field(
        "raw", description="raw, rows summing to one, or columns standardised (dense); the paper's code uses raw"
    )
    synthetic: SyntheticSpec | None = Field(None, description="settings of the generator, with name=synthetic")
    files: FilesSpec | None = Field(None, description="the files to read, with name=files")
    imported: str | None = Field(
        None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="name given to `nml datasets import`"
    )
    held_out_edges: float = Field(
        0, ge=0, le=0.5, description="share of linked node pairs that no run sees, kept to judge embeddings; 0: none"
    )
    held_out_seed: int = Field(0, ge=0, lt=2**31, description="which pairs are held out, apart from the run's seed")

    @model_validator(mode="after")
    def _belongs_together(self) -> DataSpec:
        if (self.imported is not None) != (self.name == "imported"):
            raise ValueError("data.imported goes with data.name=imported, and only with it")
        if (self.files is not None) != (self.name == "files"):
            raise ValueError("data.files goes with data.name=files, and only with it")
        if self.synthetic is not None and self.name != "synthetic":
            raise ValueError("data.synthetic goes with data.name=synthetic only")
        return self


class AugmentSpec(Spec):
    """How the two views are drawn; a pair holds the values for view 1 and view 2."""

    edge_drop: tuple[Probability, Probability] = Field((0.4, 0.4), description="share of stored directed edges dropped")
    feature_mask: tuple[Probability, Probability] = Field((0.1, 0.1), description="share of feature columns zeroed")
    undirected: bool = Field(False, description="drop both directions of an edge together (published code does not)")


class EncoderSpec(Spec):
    """GCN: propagate, transform, activate between layers. Memory: about 4 N × hidden floats per view and layer."""

    hidden: int = Field(512, ge=1, le=8_192, description="width of the inner layers")
    dim: int = Field(512, ge=1, le=8_192, description="width of the embedding")
    layers: int = Field(2, ge=1, le=8, description="number of GCN layers")
    activation: Activation = Field(
        "prelu", description="between layers; rrelu_random draws slopes while training, rrelu_mean uses their mean"
    )


class MetricSpec(Spec):
    """The negative metric network M, which gives s_ij; the weight of a negative is softmax_j(s_ij)."""

    kind: MetricKind = Field("siamese_negcos", description="form of s_ij, see methods 2.5; uniform means no M")
    hidden: int = Field(
        512, ge=1, le=8_192, description="width; pair_mlp costs N² × hidden, keep it at 64 or below there"
    )
    dim: int | None = Field(
        None, ge=1, le=8_192, description="width of M's output, the price of a metric step; none: as hidden"
    )
    hidden_layers: int = Field(1, ge=1, le=4, description="hidden layers; the published code has 1, the paper says 2")
    input: Literal["raw", "unit"] = Field("unit", description="what M sees: embeddings as they are, or unit rows")
    activation: Activation = Field("prelu", description="between M's layers")
    scale: float = Field(
        1.0, gt=0, le=MAX_METRIC_SCALE, description="κ: s lies in [-κ, κ], so weights differ by at most exp(2κ)"
    )
    learn_scale: bool = Field(True, description="learn κ, clamped to at most 10")

    @property
    def out_dim(self) -> int:
        """Width of M's output."""
        return self.dim or self.hidden


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


class ObjectiveSpec(Spec):
    """L_NML + a KL, and the turns in which M and the encoder minimise it (Algorithm 1)."""

    temperature: float = Field(
        0.5, gt=0.025, le=10, description="τ: below 0.025 float32 overflows, see design section 3"
    )
    reg: RegSpec = RegSpec()
    inner_steps: int = Field(5, ge=0, le=100, description="T_M: metric steps per epoch; ignored where M has no weights")
    inner_recompute: bool = Field(
        False, description="re-encode the views with fresh noise before each metric step, as the published code does"
    )
    detach_metric: bool = Field(True, description="encoder step treats the weights as constants (half the products)")


class OptimiserSpec(Spec):
    """Adam with L2 weight decay; one optimiser for the encoder, one for M."""

    epochs: int = Field(100, ge=1, le=1_000_000, description="T_E: outer iterations, one encoder step each")
    lr: float = Field(5e-4, gt=0, le=1, description="learning rate of the encoder")
    lr_scaling: Literal["linear", "none"] = Field(
        "linear",
        description="linear: of k steps in an epoch each takes lr / k, so that lr and epochs mean the same in every "
        "scope; none: each takes lr",
    )
    weight_decay: float = Field(0.0, ge=0, le=1, description="L2 on the encoder")
    metric_lr: float | None = Field(None, gt=0, le=1, description="learning rate of M; none: as the encoder's")
    metric_weight_decay: float = Field(0.0, ge=0, le=1, description="L2 on M")


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


class EvaluationSpec(Spec):
    """How embeddings are judged after training. Labels choose nothing but the probe's own L2 and stopping epoch."""

    protocol: Literal["clean", "pygcl_swap"] = Field(
        "clean",
        description="clean: public split or random 10/10/80; pygcl_swap: 10/80/10, only to explain published numbers",
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


class TrainSpec(Spec):
    """The whole document."""

    method: Literal["nml"] = Field("nml", description="the learning method")
    preset: str | None = Field(None, max_length=100, description="the preset this came from, for the record")
    data: DataSpec = DataSpec()
    augment: AugmentSpec = AugmentSpec()
    encoder: EncoderSpec = EncoderSpec()
    metric: MetricSpec = MetricSpec()
    objective: ObjectiveSpec = ObjectiveSpec()
    optimiser: OptimiserSpec = OptimiserSpec()
    sampling: SamplingSpec = SamplingSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    run: RunSpec = RunSpec()

    @model_validator(mode="after")
    def _hops_are_layers(self) -> TrainSpec:
        hops = self.sampling.num_neighbors
        if hops is not None and len(hops) != self.encoder.layers:
            raise ValueError(
                f"sampling.num_neighbors has {len(hops)} hops for {self.encoder.layers} encoder layers; give one each"
            )
        return self

    @model_validator(mode="after")
    def _exponentials_fit(self) -> TrainSpec:
        learns = self.metric.kind in ("siamese_cos", "siamese_negcos", "two_tower")
        kappa = (MAX_METRIC_SCALE if self.metric.learn_scale else self.metric.scale) if learns else 1.0
        limit = 87 if self.run.dtype == "float32" else 700
        if 2 * (kappa + 1 / self.objective.temperature) >= limit:
            raise ValueError(
                f"temperature {self.objective.temperature:g} with a metric scale of up to {kappa:g} overflows "
                f"{self.run.dtype}: 2(κ + 1/τ) must stay below {limit}. Raise objective.temperature"
            )
        return self


def spec_hash(spec: TrainSpec) -> str:
    """Name of what a spec trains: the SHA-256 of its canonical JSON, less what changes no result.

    Tile and kept memory are left out too, so that a run that ran out of memory can go on with smaller ones. Where no
    edges are held out, nothing is said of them, nor of M's own width or a precision that are as they always were.
    """
    left_out: dict[str, Any] = {
        "preset": True, "run": _BOOK_KEEPING, "sampling": _MEMORY_ONLY, "evaluation": _LOOKED_AT_ONLY,
    }  # fmt: skip
    if not spec.data.held_out_edges:
        left_out["data"] = {"held_out_edges", "held_out_seed"}
    if spec.metric.dim is None:
        left_out["metric"] = {"dim"}
    if spec.run.precision == "float32":
        left_out["run"] = _BOOK_KEEPING | {"precision"}
    document = spec.model_dump(mode="json", exclude=left_out)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


_MEMORY_ONLY = {"tile", "keep_mb", "loader_workers"}
_LOOKED_AT_ONLY = {"watch_every"}
_BOOK_KEEPING = {
    "threads", "checkpoint_every", "checkpoint_minutes", "keep_checkpoints", "diagnose_every", "export", "track",
    "experiment", "name",
}  # fmt: skip


def parse_spec(document: Any) -> TrainSpec:
    """Validate a JSON-like document.

    Raises:
        InvalidInput: with one line per wrong field, naming it and its bound.
    """
    try:
        return TrainSpec.model_validate(document)
    except ValidationError as error:
        raise InvalidInput(explain(error)) from error


def explain(error: ValidationError) -> str:
    """One line per wrong field: its dotted path and what is wrong with it."""
    lines = []
    for item in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in item["loc"]) or "spec"
        what = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            what = "unknown key; remove it or check its spelling"
        lines.append(f"{where}: {what}")
    return "\n".join(lines)
