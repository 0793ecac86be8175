"""Who may change what a key has made. The store checks it, within the transaction that makes the change."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, select

from service.store.records import bare_name
from service.store.tables import datasets, keys

MayChange = Callable[[str | None], bool]  # whether the caller may change what this owner has made


def anyone(owner: str | None) -> bool:
    return True


def name_owner(connection: Connection, name: str) -> tuple[str | None] | None:
    """The owner of an uploaded data set's name: who made the first version that is usable. None: nobody did."""
    usable = select(datasets.c.owner).where(datasets.c.name == name, datasets.c.state != "failed")
    first = connection.execute(usable.order_by(datasets.c.created, datasets.c.ref.desc()).limit(1)).first()
    return None if first is None else (first.owner,)


def speaks_for(connection: Connection, owner: str | None, dataset: str) -> bool:
    """Whether what `owner` trained on a data set may stand for it: `latest.<name>` follows only that.

    Of an uploaded data set these are its owner and admins, and only admins once it is deleted; of one that belongs to
    nobody, as those that are built in, everyone.
    """
    if owner is None:  # made without a key, so where none is needed
        return True
    name = bare_name(dataset)
    found = name_owner(connection, name)
    if (found is None and name == dataset) or found == (owner,):
        return True
    scopes = connection.execute(select(keys.c.scopes).where(keys.c.id == owner, ~keys.c.revoked)).scalar()
    return "admin" in (scopes or ())
