"""A data set as clients read it: one shape for built-in, public, imported and uploaded ones; null: not known."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from service.api.schemas import Document, Moment


class Degree(Document):
    """How many edges go into a node, as stored: an undirected edge goes into both its ends."""

    min: int
    median: float
    mean: float
    max: int
    isolated: int = Field(description="nodes without an edge in either direction")
    quantiles: dict[str, float] = Field(description="by share of nodes, such as 0.95")


class Version(Document):
    """One version of a data set that was uploaded under this name."""

    ref: str
    state: Literal["checking", "ready", "failed"]
    created: Moment


class DatasetDocument(Document):
    """A graph that jobs can name."""

    name: str = Field(examples=["papers"])
    ref: str = Field(description="names one version for good, if there are some", examples=["papers.3f2a9c01d7be"])
    kind: Literal["builtin", "public", "generator", "imported", "uploaded"] = Field(
        description="public: downloaded when first used; imported: on the command line of the service's machine"
    )
    state: Literal["checking", "ready", "failed"]
    nodes: int | None
    edges: int | None = Field(description="directed ones, as stored: an undirected edge counts twice")
    features: int | None
    classes: int | None = Field(description="of the labels; 0: there are none")
    sparse: bool | None = Field(description="whether at most a quarter of the features is not zero")
    weighted: bool | None
    degree: Degree | None
    bytes: int | None = Field(description="on disk; while it is being checked, as uploaded")
    fingerprint: str | None = Field(description="SHA-256 of structure, features and ids")
    notes: list[str] = Field(description="what was normalised on the way in")
    options: dict[str, Any] | None = Field(description="how the upload was read")
    created: Moment | None
    owner: str | None = Field(description="id of the key that uploaded it")
    job: str | None = Field(description="the job that checks it")
    offline: bool = Field(description="whether a job finds it without a network")
    failure: str | None = Field(description="why it was refused")
    versions: list[Version] | None = Field(description="of this name, newest first; null in lists")


class DatasetPage(Document):
    """Some data sets: those that are always there, then imported ones, then uploaded ones."""

    items: list[DatasetDocument]
    next: str | None = Field(description="as `cursor`, gives the next page; null on the last")
