"""What the store says when it cannot do what it was asked."""

from __future__ import annotations


class StoreError(Exception):
    """With a sentence for the person who asked."""


class Unavailable(StoreError):
    """The database cannot be reached, is locked for too long, or its disk is full; the same call may work later."""


class Fenced(StoreError):
    """The job is no longer this dispatcher's: another one took it over, or it has ended. Leave it alone."""


class NotFound(StoreError):
    """No such thing."""


class StateConflict(StoreError):
    """The job's state does not allow it."""


class QuotaExceeded(StoreError):
    """The owner has as many unfinished jobs as allowed."""


class IdempotencyConflict(StoreError):
    """The idempotency key was used for another request."""


class InUse(StoreError):
    """A job that has not ended needs it."""


class NotAllowed(StoreError):
    """The alias is another's."""
