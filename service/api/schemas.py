"""The documents that clients read, for OpenAPI and for tests; answers are built by service.api.responses without them.

The specs in them are those that clients send, with every default written out.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from trainer.config import TrainSpec
from trainer.spec.training import SamplingSpec
from tuner.config import SweepSpec

State = Literal["queued", "running", "cancelling", "succeeded", "failed", "cancelled"]
Moment = Annotated[
    str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$", examples=["2026-05-04T09:30:00.000Z"])
]


class Document(BaseModel):
    """Closed, so that a test notices when an answer has more than is described here."""

    model_config = ConfigDict(extra="forbid")


class Failure(Document):
    """Why a job failed."""

    kind: Literal["invalid", "oom", "infra", "deadline"] = Field(
        description="invalid: change the spec or the data; oom: memory; infra: machine, disk or network; deadline"
    )
    message: str


class Retries(Document):
    """How often a job was tried again, by what had gone wrong."""

    infra: int
    oom: int


class Progress(BaseModel):
    """How far the job is; empty until it runs. Unknown values are left out or null."""

    model_config = ConfigDict(extra="allow")

    phase: str | None = Field(None, description="what it is doing now, such as train, export, evaluate")
    epoch: int | None = None
    epochs: int | None = Field(None, description="how many there will be")
    share: float | None = Field(None, description="of the whole job, from 0 to 1")
    epochs_per_second: float | None = None
    eta_seconds: float | None = Field(None, description="until it is done, at the current pace")


class Links(Document):
    """Where to find what belongs to a job; null for what does not exist, or not yet."""

    self: str
    events: str = Field(description="server-sent events")
    log: str
    metrics: str = Field(description="metrics by epoch")
    cancel: str | None
    embeddings: str | None = Field(description="the manifest, which names the other files beside it")
    figures: list[str]
    mlflow: str | None = Field(description="the job's run in MLflow's own pages")
    trials: str | None = Field(None, description="of a sweep")
    best: str | None = Field(None, description="of a sweep: the training spec with its best settings")


class JobSummary(Document):
    """A job or sweep in a list."""

    id: str = Field(examples=["01jx0a3z5m8q2v7w9c4t6r1b0d"])
    kind: Literal["train", "sweep", "import", "publish", "index"]
    name: str | None
    state: State = Field(description="the last three are final")
    attempt: int = Field(description="how often it was started; 0 while it has not been")
    priority: int
    owner: str | None = Field(description="id of the key that submitted it")
    created: Moment
    started: Moment | None
    ended: Moment | None
    deadline: Moment | None
    metadata: dict[str, str] = Field(description="what the client noted on it", examples=[{"team": "graphs"}])
    dataset: str = Field(description="the data set's name, with its version where it has one")
    spec_hash: str = Field(description="equal for specs that train the same")
    memory_bytes: int | None = Field(description="what it was estimated to need")
    retries: Retries
    progress: Progress
    metrics: dict[str, Any] = Field(description="its newest metrics")
    failure: Failure | None
    mlflow_run_id: str | None
    tracker_error: str | None = Field(description="why MLflow could not be updated, if so; the job continues")
    last_event: int = Field(description="number of its newest event")
    links: Links


class JobDocument(JobSummary):
    """A training job."""

    result: dict[str, Any] | None = Field(description="all metrics of the finished run, as in its metrics.json")
    spec: TrainSpec | None = Field(description="with every default written out; null for jobs of the service itself")


class SweepDocument(JobSummary):
    """A sweep."""

    result: dict[str, Any] | None = Field(description="the results of the finished sweep, as in its results.json")
    spec: SweepSpec = Field(description="with every default written out")


class JobPage(Document):
    """Some jobs, newest first."""

    items: list[JobSummary]
    next: str | None = Field(description="as `cursor`, gives the next page; null on the last")


class GraphShapeDocument(Document):
    """How large the graph is."""

    nodes: int
    edges: int = Field(description="directed ones")
    features: int
    nonzeros: int | None = Field(description="of sparse features; null: they are dense")
    weighted: bool
    mapped: bool = Field(description="it stays on disk and is read by slices")
    classes: int = Field(description="of its labels; 0: there are none")
    id_bytes: int = Field(description="of one node's id")
    loading: int = Field(description="bytes that reading it takes beside itself")
    note: str = Field(description="where these numbers come from")


class MemoryDocument(Document):
    """Bytes that each process of the run needs. What is held at different times does not add up."""

    total: int
    peak: str = Field(description="when most is held", examples=["training"])
    largest: str = Field(description="the largest part apart from libraries", examples=["contrast"])
    parts: dict[str, int]
    held: dict[str, str] = Field(description="when each part is held")


class EstimateDocument(Document):
    """What a training job would need, and how it would be done."""

    data: str = Field(description="the data set, with its version where it has one", examples=["digits"])
    workers: int = Field(description="processes that train together")
    shape: GraphShapeDocument
    sampling: SamplingSpec = Field(description="with all that the spec leaves open filled in")
    spec_hash: str = Field(description="equal for specs that train the same")
    reason: str = Field(description="why it would be done in this way")
    memory: MemoryDocument
    limit: int = Field(description="bytes that all processes together may use")


class Series(Document):
    """Metrics over time: one list per metric, each as long as `epochs`."""

    epochs: list[int] = Field(description="of a sweep: its trials that have ended, counted in that order")
    series: dict[str, list[float | None]]
    every: int = Field(description="only every so many epochs, and the last, are here")


class Trials(Document):
    """A sweep's trials, by number, and their results."""

    objective: str
    protocol: str = Field(description="how the values were measured")
    states: dict[str, int] = Field(description="trials by state")
    best: int | None = Field(description="number of the best trial so far")
    value: float | None = Field(description="of the best trial")
    trials: list[dict[str, Any]] = Field(
        description="number, state, origin, value, each searched field by its dotted path, epoch, seconds, figures"
    )
    next: int | None = Field(description="as `after`, gives the next trials; null if there are no more")


class FieldProblem(Document):
    field: str = Field(description="dotted path", examples=["method.temperature"])
    message: str


class ProblemDocument(BaseModel):
    """RFC 9457; every error is answered with one."""

    model_config = ConfigDict(extra="allow", title="Problem")

    type: str = Field(examples=["about:blank"])
    title: str = Field(examples=["Unprocessable Content"])
    status: int = Field(ge=400, le=599, examples=[422])
    detail: str = Field(examples=["method.temperature: Input should be greater than 0.025"])
    instance: str = Field(description="identifies this answer in the log; also in the header X-Request-ID")
    errors: list[FieldProblem] | None = None


class Alive(Document):
    status: Literal["alive"]


class Ready(Document):
    status: Literal["ready"]
