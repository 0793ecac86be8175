"""What can go wrong with a call, in sentences; each has the kind and exit code of its class (trainer.errors)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.errors import Cancelled, Infrastructure, InvalidInput, OutOfMemory, TrainerError

EXIT_CODES = {
    "invalid": InvalidInput.exit_code,
    "oom": OutOfMemory.exit_code,
    "infra": Infrastructure.exit_code,
    "cancelled": Cancelled.exit_code,
    "deadline": Cancelled.exit_code,  # nothing was wrong with it but that its time was over
}
_KEY_REMEDY = "Set NML_API_KEY or --key; `nml keys create NAME` on the service's machine creates a key."


class ApiError(TrainerError):
    """The service refused a request.

    Attributes:
        status: of HTTP.
        title, detail: of the problem document (RFC 9457).
        errors: {"field": …, "message": …} for each field that is wrong.
        retry_after: seconds after which the service wants to be asked again, if it said so.
        may_be_done: an earlier attempt of this call got no answer that tells, and may have been carried out.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str = "",
        errors: Sequence[Mapping[str, Any]] = (),
        retry_after: float | None = None,
    ):
        super().__init__(status, title, detail, errors)
        self.status, self.title, self.detail, self.errors = status, title, detail, tuple(errors)
        self.retry_after = retry_after
        self.may_be_done = False  # known to who makes the attempts
        self.kind = "invalid" if 300 <= status < 500 and status != 429 else "infra"
        self.exit_code = EXIT_CODES[self.kind]

    def __str__(self) -> str:
        told = self.detail or self.title
        named = [(str(error.get("field") or ""), str(error.get("message") or "")) for error in self.errors]
        lines = [f"{field}: {message}" if field else message for field, message in named]
        if len(lines) > 1 or lines[0:1] != [told]:  # one wrong field is told by the detail already
            told = "\n  ".join([f"{told} (HTTP {self.status})", *lines])
        return f"{told}. {_KEY_REMEDY}" if self.status == 401 else told


class Unreachable(Infrastructure):
    """No answer came from the service's address."""

    def __init__(self, url: str, reason: str, *, for_good: bool = False, sent: bool = True):
        super().__init__(url, reason)
        self.url, self.reason = url, reason
        self.for_good = for_good  # waiting does not help: no such host, a certificate that is not trusted
        self.sent = sent  # there was a connection, so that the request may have been carried out

    def __str__(self) -> str:
        return (
            f"{self.url} does not answer ({self.reason}). Start the service with `nml serve`, or set NML_URL or "
            "--url to another address."
        )


class JobFailed(TrainerError):
    """The job came to an end without a result; `kind` is invalid, oom, infra, deadline or cancelled."""

    def __init__(self, job_id: str, kind: str, message: str):
        super().__init__(job_id, kind, message)
        self.job_id, self.kind, self.message = job_id, kind, message
        self.exit_code = EXIT_CODES.get(kind, Infrastructure.exit_code)

    def __str__(self) -> str:
        return f"job {self.job_id}: {self.message}"
