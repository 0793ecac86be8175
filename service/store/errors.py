"""Errors of the store."""

from __future__ import annotations


class StoreError(Exception):
    """Its message is for the client."""


class Unavailable(StoreError):
    """The database cannot be reached, is locked for too long, or its disk is full; the same call may succeed later."""


class DatabaseDamaged(Unavailable):
    """The file of the database is damaged; no call will succeed until a backup is restored."""


class NotWritable(Unavailable):
    """The disk of the database is full or read-only at the moment; what it holds can be read."""


class Fenced(StoreError):
    """The job is no longer this dispatcher's: another one took it over, or it has ended. Do not touch it."""


class NotFound(StoreError):
    """There is no such row."""


class StateConflict(StoreError):
    """The job's state does not allow it."""


class QuotaExceeded(StoreError):
    """The owner has as many unfinished jobs, or as many bytes, as allowed."""


class IdempotencyConflict(StoreError):
    """The idempotency key was used for another request."""


class InUse(StoreError):
    """A job that has not ended needs it."""


class NotAllowed(StoreError):
    """The alias or data set belongs to another key."""
