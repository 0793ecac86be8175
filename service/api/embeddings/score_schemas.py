"""Models of requests and answers about scores: recommendations, pairs of nodes, two versions; and pages of ids."""

from __future__ import annotations

from pydantic import Field

from service.api.embeddings.schemas import Backend, Filter, Metric, NodeId, RequestBody
from service.api.schemas import Document

MOST_EXAMPLES = 100
MOST_RECOMMENDED = 500
MOST_PAIRED = 1_000
MOST_SAMPLED = 500
MOST_COMPARED = 100  # neighbours of each sampled node
MOST_IDS = 10_000  # of a page


class Recommend(RequestBody):
    """Nodes that are like some and unlike others, by cosine."""

    positive: list[NodeId] = Field(min_length=1, max_length=MOST_EXAMPLES, fail_fast=True, description="like these")
    negative: list[NodeId] = Field([], max_length=MOST_EXAMPLES, fail_fast=True, description="unlike these")
    k: int = Field(10, ge=1, le=MOST_RECOMMENDED, description="how many; the examples are never among them")
    min_score: float | None = Field(None, allow_inf_nan=False, description="leave out those that score lower")
    filter: Filter | None = None
    backend: Backend = "auto"


class Scores(RequestBody):
    """How similar these nodes are, each to each."""

    ids: list[NodeId] = Field(min_length=1, max_length=MOST_PAIRED, fail_fast=True)
    others: list[NodeId] | None = Field(
        None, min_length=1, max_length=MOST_PAIRED, fail_fast=True, description="to these; if absent: to each other"
    )
    metric: Metric = "cosine"


class Compare(RequestBody):
    """How far two versions agree on who is near whom."""

    other: str = Field(pattern=r"^[0-9A-Za-z._-]{1,64}$", description="a version or an alias")
    k: int = Field(10, ge=1, le=MOST_COMPARED, description="neighbours of each node that are compared")
    sample: int = Field(200, ge=2, le=MOST_SAMPLED, description="nodes, drawn from those that both versions have")
    seed: int = Field(0, ge=0, lt=2**31, description="of the draw")


SCORE_BODIES: tuple[type[RequestBody], ...] = (Recommend, Scores, Compare)


class RecommendDocument(Document):
    """Best first."""

    version: str
    ids: list[int | str]
    scores: list[float] = Field(description="cosine to the mean of the positive less that of the negative examples")
    unknown: list[int | str] = Field(description="examples that are not in this version")
    unknown_in_filter: list[int | str]


class ScoresDocument(Document):
    """A row for each of `ids`, a column for each of `others`; of nodes that are in this version."""

    version: str
    metric: Metric
    ids: list[int | str]
    others: list[int | str]
    scores: list[list[float]]
    unknown: list[int | str] = Field(description="ids asked for that are not in this version")


class CompareDocument(Document):
    """Two versions, on a sample of the nodes that both have."""

    version: str
    other: str
    k: int
    ids: list[int | str] = Field(description="the sampled nodes")
    overlap: list[float] = Field(description="for each: the share of its k neighbours that are the same in both")
    mean_overlap: float
    drift: list[float] = Field(
        description="for each: 1 minus the correlation of its cosines to the other sampled nodes in one version and in "
        "the other; 0: nothing has moved. Neither rotation nor dimension matters"
    )
    mean_drift: float


class IdPage(Document):
    """Some ids, in the order of the rows of the table."""

    version: str
    ids: list[int | str]
    next: str | None = Field(description="pass it as `cursor` to get the next page; null on the last")
