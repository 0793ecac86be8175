"""The sections of a spec that name a graph: `data`, and what it says of generated graphs and of files."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from trainer.spec.base import Spec

DatasetName = Literal[
    "digits", "synthetic", "files", "imported",
    "cora", "citeseer", "pubmed", "photo", "computers", "wikics", "cs", "physics",
]  # fmt: skip


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
    feature_columns: tuple[str, ...] | None = Field(
        None, min_length=1, max_length=10_000,
        description="node table: the columns that are features; none: all that mean nothing else",
    )  # fmt: skip
    ignore_columns: tuple[str, ...] | None = Field(
        None, min_length=1, max_length=10_000, description="node table: columns that are no features"
    )
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
