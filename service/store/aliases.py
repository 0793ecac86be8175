"""Names that point to published versions, and move from one to another in one transaction.

All that changes an alias or a version first takes one lock for all of them (`lock_catalog`): so a version cannot be
deleted while a name is moved to it, and numbers have no gaps. Changes are rare; reading takes no lock.

Every move is kept. Each knows the move to which a roll back returns (`previous`), which makes a stack within the
history: setting puts on top, rolling back takes off, removing empties it.
"""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from service.store.clock import now
from service.store.counters import increase
from service.store.engine import Database, reading, writing
from service.store.errors import NotAllowed, NotFound, QuotaExceeded, StateConflict
from service.store.owners import MayChange, anyone
from service.store.records import ALIAS, VERSION, Alias, AliasMove, is_automatic
from service.store.tables import alias_moves, aliases, counters, embeddings

REVISION = "embeddings"  # the counter that grows with every change of a version or an alias
MOST_PER_KEY = 1_000  # names that move by themselves are not counted
Reason = Literal["set", "rollback", "automatic", "removed"]


class Aliases:
    """Every method is one transaction. All raise Unavailable where the database does not answer."""

    def __init__(self, database: Database):
        self._database = database

    def get(self, name: str) -> Alias | None:
        with reading(self._database) as connection:
            return find_alias(connection, name)

    def history(self, name: str, *, before: int | None = None, limit: int = 100) -> list[AliasMove]:
        """Its moves, newest first, those before number `before`; also of a name that was removed."""
        query = select(*_MOVE).where(alias_moves.c.name == name).order_by(alias_moves.c.seq.desc()).limit(limit)
        if before is not None:
            query = query.where(alias_moves.c.seq < before)
        with reading(self._database) as connection:
            return [AliasMove(**row._mapping) for row in connection.execute(query)]

    def move(
        self, name: str, version: str, *, owner: str | None, expected: str | None = None, reason: Reason = "set",
        may_change: MayChange = anyone,
    ) -> Alias:  # fmt: skip
        """Let the name point to a version; where it does so already, nothing changes.

        Args:
            owner: who asks. A new name is theirs; one that is there keeps its owner.
            expected: the version to which it must point until now; "": it must not exist.
            may_change: asked of the owner whom the name has in the moment it moves.

        Raises:
            ValueError: no such name is possible.
            NotAllowed: it is another's.
            NotFound: there is no such version, or it is not ready.
            StateConflict: it does not point to `expected`, or moves by itself.
            QuotaExceeded: it would be new, and the owner has as many as one may have.
        """
        _check_name(name)
        with writing(self._database) as connection:
            lock_catalog(connection)
            present = find_alias(connection, name)
            _check_owner(present, may_change)
            _check_expected(name, present, expected)
            if present is not None and present.version == version:
                return present
            if not _is_ready(connection, version):
                raise NotFound(f"there is no published version {version}")
            if present is None:
                _check_number(connection, owner)
            previous = None if present is None else present.seq
            return point(connection, name, version, owner=owner, reason=reason, previous=previous)

    def rollback(
        self, name: str, *, owner: str | None, expected: str | None = None, may_change: MayChange = anyone
    ) -> Alias:
        """Undo the newest move: back to the version before it that is still there; the next time one further.

        Raises:
            ValueError: no such name is possible.
            NotAllowed: it is another's.
            NotFound: no such name.
            StateConflict: there is nothing to go back to, it does not point to `expected`, or moves by itself.
        """
        _check_name(name)
        with writing(self._database) as connection:
            lock_catalog(connection)
            present = find_alias(connection, name)
            _check_owner(present, may_change)
            _check_expected(name, present, expected)
            if present is None:
                raise NotFound(f"there is no alias {name}")
            beneath = _previous(connection, name, present.seq)
            while beneath is not None:
                row = connection.execute(_one_move(name, beneath)).one()
                if row.version != present.version and _is_ready(connection, row.version):
                    back = {"owner": owner, "reason": "rollback", "previous": row.previous}
                    return point(connection, name, row.version, **back)
                beneath = row.previous
            raise StateConflict(f"alias {name} has never pointed to another version that is still there")

    def remove(self, name: str, *, owner: str | None, may_change: MayChange = anyone) -> None:
        """Forget the name; its history stays.

        Raises:
            NotAllowed: it is another's.
            NotFound: no such name.
            StateConflict: it moves by itself.
        """
        if is_automatic(name):
            raise _moves_by_itself(name)
        with writing(self._database) as connection:
            lock_catalog(connection)
            present = find_alias(connection, name)
            if present is None:
                raise NotFound(f"there is no alias {name}")
            _check_owner(present, may_change)
            drop(connection, name, owner=owner)

    def list(self, *, after: str | None = None, limit: int = 100) -> tuple[list[Alias], str | None]:
        """A page in the order of names, and the cursor of the next page, None on the last."""
        query = select(aliases).order_by(aliases.c.name).limit(limit + 1)
        if after is not None:
            query = query.where(aliases.c.name > after)
        with reading(self._database) as connection:
            found = [_alias(row) for row in connection.execute(query)]
        return found[:limit], found[limit - 1].name if len(found) > limit else None


def lock_catalog(connection: Connection) -> None:
    """Nobody else changes a version or an alias until this transaction ends. (SQLite has one writer anyway.)

    Who also locks a job does that before.
    """
    connection.execute(select(counters.c.value).where(counters.c.name == REVISION).with_for_update())


def changed(connection: Connection) -> None:
    """Let those who keep a copy know."""
    increase(connection, REVISION)


def find_alias(connection: Connection, name: str) -> Alias | None:
    row = connection.execute(select(aliases).where(aliases.c.name == name)).first()
    return None if row is None else _alias(row)


def point(
    connection: Connection, name: str, version: str, *, owner: str | None, reason: Reason, previous: int | None
) -> Alias:
    """Let a name point to a version, within a transaction that has locked the snapshot."""
    seq = _next_seq(connection, name)
    moment = now(connection)
    _keep(connection, name=name, seq=seq, version=version, time=moment, owner=owner, reason=reason, previous=previous)
    values: dict[str, Any] = {"version": version, "seq": seq, "moved": moment}
    row = connection.execute(update(aliases).where(aliases.c.name == name).values(**values).returning(aliases)).first()
    if row is None:
        values |= {"name": name, "owner": owner, "automatic": is_automatic(name)}
        row = connection.execute(insert(aliases).values(**values).returning(aliases)).one()
    changed(connection)
    return _alias(row)


def drop(connection: Connection, name: str, *, owner: str | None) -> None:
    """Remove a name, within a transaction that has locked the snapshot."""
    seq, moment = _next_seq(connection, name), now(connection)
    _keep(connection, name=name, seq=seq, version=None, time=moment, owner=owner, reason="removed", previous=None)
    connection.execute(delete(aliases).where(aliases.c.name == name))
    changed(connection)


def _keep(connection: Connection, **move: Any) -> None:
    connection.execute(insert(alias_moves).values(**move))


def _next_seq(connection: Connection, name: str) -> int:
    last = connection.execute(select(func.max(alias_moves.c.seq)).where(alias_moves.c.name == name)).scalar()
    return (last or 0) + 1


def _one_move(name: str, seq: int) -> Any:
    return select(alias_moves).where(alias_moves.c.name == name, alias_moves.c.seq == seq)


def _previous(connection: Connection, name: str, seq: int) -> int | None:
    found: int | None = connection.execute(_one_move(name, seq)).one().previous
    return found


def _is_ready(connection: Connection, version: str) -> bool:
    query = select(embeddings.c.version).where(embeddings.c.version == version, embeddings.c.state == "ready")
    return connection.execute(query).first() is not None


def _check_name(name: str) -> None:
    if is_automatic(name):
        raise _moves_by_itself(name)
    if not ALIAS.fullmatch(name) or VERSION.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of an alias")


def _moves_by_itself(name: str) -> StateConflict:
    return StateConflict(f"alias {name} follows the newest version by itself; choose another name for one to set")


def _check_owner(present: Alias | None, may_change: MayChange) -> None:
    if present is not None and not may_change(present.owner):
        raise NotAllowed("only the key that created it, or one with the scope admin, may change it")


def _check_number(connection: Connection, owner: str | None) -> None:
    if owner is None:  # without keys there is nobody to count for
        return
    own = select(func.count()).where(aliases.c.owner == owner, ~aliases.c.automatic)
    if connection.execute(own).scalar_one() >= MOST_PER_KEY:
        raise QuotaExceeded(f"this key has {MOST_PER_KEY:,} aliases, and may have no more; remove some")


def _check_expected(name: str, present: Alias | None, expected: str | None) -> None:
    there = "" if present is None else present.version
    if expected is not None and expected != there:
        found = f"points to {there}" if there else "does not exist"
        raise StateConflict(f"alias {name} {found}, not as expected; look again, then decide")


def _alias(row: Row[Any]) -> Alias:
    return Alias(**row._mapping)


_MOVE = [column for column in alias_moves.c if column.name != "previous"]
