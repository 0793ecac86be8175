"""What stands beside a spec: a job's name, priority, deadline and metadata; and how they are changed later.

Name, priority and deadline may also come in the query, which is where earlier clients put them.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from service.api.problems import FieldError, not_valid
from service.store.records import MOST_METADATA
from trainer.config import TrainSpec
from trainer.spec.base import PRINTABLE
from tuner.config import SweepSpec

KEY = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
LONGEST_VALUE = 256  # characters
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTABLE)]
Priority = Annotated[int, Field(ge=-100, le=100, description="higher priorities start first")]
MetadataKey = Annotated[str, Field(pattern=KEY)]
MetadataValue = Annotated[str, Field(max_length=LONGEST_VALUE, pattern=PRINTABLE)]


class SubmitQuery(BaseModel):
    name: Name | None = None
    priority: Priority = 0
    deadline_minutes: float | None = Field(
        None, gt=0, le=1e6, allow_inf_nan=False, description="from now; a job that has not ended by then fails"
    )


class JobOptions(SubmitQuery):
    """All of them, as they stand beside a spec."""

    model_config = ConfigDict(extra="forbid")

    metadata: dict[MetadataKey, MetadataValue] = Field(
        {}, max_length=MOST_METADATA, description="notes of your own; lists of jobs can be filtered by them"
    )


class JobSubmission(TrainSpec, JobOptions):
    """A training spec and, beside it, what the job is called and when it starts. What the spec leaves out is taken
    from its preset."""


class SweepSubmission(SweepSpec, JobOptions):
    """A sweep spec and, beside it, what the sweep is called and when it starts."""


class JobPatch(BaseModel):
    """What to change; the rest stays as it is."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"priority": 5, "metadata": {"team": "graphs", "draft": None}}]}
    )

    name: Name | None = Field(None, description="null: none")
    priority: Priority = Field(0, description="of a job that has not ended")
    metadata: dict[MetadataKey, MetadataValue | None] = Field(
        {}, max_length=MOST_METADATA, description="entries to set; null removes one, and others stay"
    )

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("body: give name, priority or metadata")
        return self

    def changes(self) -> dict[str, Any]:
        """What was given."""
        return self.model_dump(exclude_unset=True)


DESCRIBED = (JobSubmission, SweepSubmission, JobPatch)  # read by routes themselves, so that FastAPI does not know them


def split(document: dict[str, Any], query: SubmitQuery) -> tuple[dict[str, Any], dict[str, Any]]:
    """The spec in a document, and the options beside it or in the query, not yet validated.

    Raises:
        Problem: 422, an option is in both.
    """
    beside = {name: document[name] for name in JobOptions.model_fields if name in document}
    if twice := [name for name in beside if name in query.model_fields_set]:
        why = "is given in the query and beside the spec; leave one of them out"
        raise not_valid([FieldError(name, why) for name in twice])
    spec = {name: value for name, value in document.items() if name not in beside}
    return spec, query.model_dump(exclude_unset=True) | beside
