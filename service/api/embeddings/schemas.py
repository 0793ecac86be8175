"""Models of the request bodies, which are validated with them, and of the documents that clients receive.

`request_body` reads requests; `responses` and `documents` write answers without these models, which takes less time.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, GetCoreSchemaHandler, Tag, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from service.api.schemas import Document, Moment

MOST_LOOKED_UP = 10_000
MOST_QUERIES = 1_000
MOST_NEIGHBORS = 1_000
MOST_NEW_NODES = 1_000
MOST_LABELLED = 100_000
MOST_CLASSES, LONGEST_LABEL = 10_000, 256  # as in files (trainer.data.sources.labels); characters
MOST_KEYS = 50  # of an object; ours have fewer than ten
ALIAS = r"^[a-z0-9][a-z0-9._-]{0,63}$"
VERSION = r"^[0-9A-Za-z_-]{1,64}$"
PLAIN, OBJECT = "<plain>", "<object>"
TOO_MANY_KEYS: Final = "too_many_keys"


class _NodeId:
    """Pydantic's own union would report each mistake twice, under `ids.3.int` and `ids.3.str`."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.union_schema(
            [core_schema.int_schema(strict=True), core_schema.str_schema(strict=True)],
            custom_error_type="whole_number_or_text", custom_error_message="should be a whole number or text",
        )  # fmt: skip


NodeId = Annotated[int | str, _NodeId]
Real = Annotated[float, Field(allow_inf_nan=False)]
Numbers = Annotated[list[Real], Field(fail_fast=True)]
Metric = Literal["cosine", "dot"]
Backend = Literal["auto", "exact", "hnsw", "ivf"]


class RequestBody(BaseModel):
    """Closed and strict: a number in quotes is text, true is no number."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _few_keys(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MOST_KEYS:  # each unknown one would be a mistake to report
            known = ", ".join(cls.model_fields)
            why = f"has {len(value):,} keys; the known ones are {known}"
            raise PydanticCustomError(TOO_MANY_KEYS, why)
        return value


class Lookup(RequestBody):
    """Vectors of these nodes."""

    ids: list[NodeId] = Field(max_length=MOST_LOOKED_UP, fail_fast=True, examples=[["1", "7"]])


class Filter(RequestBody):
    """Only among these nodes: those with one of the labels, or those listed."""

    labels: list[str] | None = Field(None, min_length=1, max_length=1_000, fail_fast=True)
    ids: list[NodeId] | None = Field(None, min_length=1, max_length=MOST_LOOKED_UP, fail_fast=True)

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.labels is None) == (self.ids is None):
            raise ValueError("give either labels or ids")
        return self


class NeighborOptions(RequestBody):
    """How to search. With a binary body, the options go in the query string."""

    k: int = Field(10, ge=1, le=MOST_NEIGHBORS, description="neighbours per query")
    metric: Metric = "cosine"
    min_score: float | None = Field(None, allow_inf_nan=False, description="leave out neighbours that score lower")
    include_vectors: bool = False
    include_self: bool = Field(False, description="with ids: a node can be its own neighbour")
    backend: Backend = Field("auto", description="auto: exact, or an index where there is one and the table is large")


class Neighbors(NeighborOptions):
    """The nearest nodes of these nodes, or of these vectors."""

    ids: list[NodeId] | None = Field(None, min_length=1, max_length=MOST_QUERIES, fail_fast=True)
    vectors: list[Numbers] | None = Field(None, min_length=1, max_length=MOST_QUERIES, fail_fast=True)
    filter: Filter | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.ids is None) == (self.vectors is None):
            raise ValueError("ids: give either ids or vectors")
        return self


class NewNodeNeighbors(NeighborOptions):
    """The nearest known nodes of new ones."""

    filter: Filter | None = None


class SparseFeatures(RequestBody):
    """The features that are not zero."""

    indices: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(fail_fast=True)
    values: Numbers

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if len(self.indices) != len(self.values):
            raise ValueError(f"indices: there are {len(self.indices)} indices but {len(self.values)} values")
        if len(set(self.indices)) != len(self.indices):
            raise ValueError("indices: the same index appears twice")
        return self


class Edge(RequestBody):
    """An edge of a new node."""

    node: NodeId = Field(description="the other end: the id of a known node or of another new node")
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False, le=3e38)] = 1.0
    direction: Literal["both", "in", "out"] = Field("both", description="in: into the new node")


def _is_object(value: Any) -> str:
    """Which of two kinds is meant, so that a mistake is reported once; `bodies` leaves the tags out of its place."""
    return OBJECT if isinstance(value, dict | BaseModel) else PLAIN


Features = Annotated[Annotated[Numbers, Tag(PLAIN)] | Annotated[SparseFeatures, Tag(OBJECT)], Discriminator(_is_object)]
EdgeTo = Annotated[Annotated[NodeId, Tag(PLAIN)] | Annotated[Edge, Tag(OBJECT)], Discriminator(_is_object)]


class NewNode(RequestBody):
    """A node that was not in the graph, or one that was, with other features and edges."""

    id: NodeId | None = Field(None, description="if a known node has this id, this node replaces it")
    features: Features
    edges: list[EdgeTo] = Field([], fail_fast=True, description="ids of known nodes, or of other new ones")


class Embed(RequestBody):
    """Vectors for nodes that were not in the graph."""

    nodes: list[NewNode] = Field(min_length=1, max_length=MOST_NEW_NODES, fail_fast=True)
    neighbors: NewNodeNeighbors | None = None


class Classify(RequestBody):
    """Labels of some nodes, from which the labels of others are predicted."""

    ids: list[NodeId] = Field(min_length=1, max_length=MOST_LABELLED, fail_fast=True)
    labels: list[NodeId] = Field(min_length=1, max_length=MOST_LABELLED, fail_fast=True)
    predict: list[NodeId] | None = Field(
        None, min_length=1, max_length=MOST_LABELLED, fail_fast=True, description="if absent: all other nodes"
    )
    seed: int = Field(0, ge=0, lt=2**31)

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if len(self.ids) != len(self.labels):
            raise ValueError(f"labels: there are {len(self.labels)} labels but {len(self.ids)} ids")
        return self


class Publish(RequestBody):
    """Publish the embeddings of a training job as a version."""

    job: str = Field(pattern=VERSION, description="id of a training job that has succeeded")


class BuildIndex(RequestBody):
    """A search index for a large table."""

    kind: Literal["hnsw", "ivf"] = "hnsw"


class MoveAlias(RequestBody):
    """Where an alias should point."""

    version: str | None = Field(None, pattern=VERSION)
    rollback: Literal[True] | None = Field(None, description="to the version before the present one")
    expected: str | None = Field(
        None, pattern=r"^[0-9A-Za-z_-]{0,64}$",
        description='the version it must point to now, else 409; "": the alias must not exist',
    )  # fmt: skip

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.version is None) == (self.rollback is None):
            raise ValueError("version: give either version or rollback")
        return self


REQUEST_BODIES: tuple[type[RequestBody], ...] = (Lookup, Neighbors, Embed, Classify, Publish, BuildIndex, MoveAlias)


class Downloads(Document):
    npy: str
    parquet: str
    ids: str


class EmbeddingLinks(Document):
    """URLs of what belongs to a version; null for what does not exist, or not yet."""

    self: str
    nodes: str | None = Field(description="append a node's id, percent-encoded")
    lookup: str | None
    neighbors: str | None
    download: Downloads | None
    embed: str | None
    classify: str | None
    job: str = Field(description="the training job, if it has not been deleted")


class EmbeddingSummary(Document):
    """One version in a list."""

    version: str = Field(description="also the id of the training job it comes from")
    state: Literal["publishing", "ready", "failed", "damaged"]
    job: str = Field(description="id of the job that publishes it")
    dataset: str
    name: str | None
    owner: str | None = Field(description="id of the key that trained it")
    created: Moment
    published: Moment | None
    rows: int | None
    dim: int | None
    id_type: Literal["int", "str"] | None
    bytes: int | None
    aliases: list[str]
    metrics: dict[str, Any] = Field(description="metrics of the training job")
    indexes: dict[str, dict[str, Any]] = Field(description="search indexes by kind: state, recall_at_10, …")
    failure: str | None
    links: EmbeddingLinks


class EmbeddingDocument(EmbeddingSummary):
    """One version: immutable once it is ready."""

    classes: list[str] | None = Field(description="labels of the nodes, to filter by; null if there are none")


class EmbeddingPage(Document):
    """Some versions, newest first."""

    items: list[EmbeddingSummary]
    next: str | None = Field(description="pass it as `cursor` to get the next page; null on the last")


class AliasMoveDocument(Document):
    seq: int
    version: str | None = Field(description="null: it was removed")
    time: Moment
    owner: str | None
    reason: Literal["set", "rollback", "automatic", "removed"]


class AliasSummary(Document):
    """A name that points to a version."""

    name: str
    version: str
    moved: Moment
    owner: str | None
    automatic: bool = Field(description="it follows the newest version and cannot be set")
    seq: int = Field(description="how many times it was moved")


class AliasDocument(AliasSummary):
    history: list[AliasMoveDocument] = Field(description="newest first")


class AliasPage(Document):
    items: list[AliasSummary]
    next: str | None = Field(description="pass it as `cursor` to get the next page; null on the last")


class NodeDocument(Document):
    """One node's vector."""

    version: str
    id: int | str
    vector: list[float]
    label: str | None = None


class LookupDocument(Document):
    """The nodes that were found, in the order of the request."""

    version: str
    ids: list[int | str]
    vectors: list[list[float]]
    unknown: list[int | str]


class Nearest(Document):
    query: int | str = Field(description="the id, or the position of the vector, in the request")
    ids: list[int | str]
    scores: list[float] = Field(description="descending")
    vectors: list[list[float]] | None = None


class NeighborsDocument(Document):
    version: str
    metric: Metric
    backend: Literal["exact", "hnsw", "ivf"]
    k: int
    results: list[Nearest]
    unknown: list[int | str] = Field(description="ids asked for that are not in this version")
    unknown_in_filter: list[int | str]


class EmbedDocument(Document):
    """With `neighbors`, also the nearest known nodes."""

    version: str
    ids: list[int | str | None]
    vectors: list[list[float]]
    metric: Metric | None = None
    backend: Literal["exact", "hnsw", "ivf"] | None = None
    k: int | None = None
    results: list[Nearest] | None = None
    unknown_in_filter: list[int | str] | None = None


class ClassifyDocument(Document):
    version: str
    classes: list[int | str]
    accuracy: float | None = Field(description="cross-validated on the labels given; null: too few of them")
    deviation: float | None = Field(description="of the accuracy between folds")
    majority: float | None = Field(description="share of the most common class: the accuracy of always predicting it")
    reason: str | None = Field(description="why the accuracy is null")
    protocol: str
    ids: list[int | str]
    labels: list[int | str]
    confidence: list[float]
