"""Why an upload is not taken, in the words of whoever sent it."""

from __future__ import annotations


class Refused(Exception):
    """An upload that goes no further.

    Args:
        status: what HTTP calls it.
        field: the part of the form that is to blame: name, options, npz, nodes, edges, or body.
        message: a sentence that says what was found and what to change. No path of this machine.
    """

    def __init__(self, status: int, field: str, message: str):
        super().__init__(message)
        self.status, self.field, self.message = status, field, message


def unusable(field: str, message: str) -> Refused:
    """422: the form is well-made, but this part of it cannot be used."""
    return Refused(422, field, message)
