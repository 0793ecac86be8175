"""The service from Python; what is not named here may change."""

from __future__ import annotations

from service.client._client import Client
from service.client._documents import Dataset, Event, Job, Sweep
from service.client._embedding_documents import Alias, Classified, Embedded, Lookup, Neighbors, Version
from service.client._errors import ApiError, JobFailed, Unreachable

__all__ = [
    "Alias", "ApiError", "Classified", "Client", "Dataset", "Embedded", "Event", "Job", "JobFailed", "Lookup",
    "Neighbors", "Sweep", "Unreachable", "Version",
]  # fmt: skip
