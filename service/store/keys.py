"""API keys: shown once when made, kept as a hash.

A key is `nml_<id>_<secret>`. The secret has 256 random bits, so a plain SHA-256 is as good as a slow hash.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Collection
from typing import Any

from sqlalchemy import Row, insert, or_, select, update

from service.store.engine import Database, reading, writing
from service.store.errors import NotFound, Unavailable
from service.store.records import Key
from service.store.tables import keys

SCOPES = ("read", "submit", "admin")
_FORM = re.compile(r"nml_([0-9a-f]{12})_([0-9a-f]{64})")
_USE_NOTED_EVERY = 600.0  # seconds, so that not every request writes


class Keys:
    """Every method is one transaction. All raise Unavailable where the database does not answer."""

    def __init__(self, database: Database):
        self._database = database

    def create(self, name: str, scopes: Collection[str], expires: float | None = None) -> tuple[Key, str]:
        """A new key and its text, which is not stored.

        Raises:
            ValueError: no scope, an unknown one, or a name that is empty, too long or not printable.
        """
        unknown = set(scopes) - set(SCOPES)
        if unknown or not scopes:
            raise ValueError(
                f"invalid scopes: {', '.join(sorted(unknown)) or 'none'} (expected one or more of {', '.join(SCOPES)})"
            )
        if not 1 <= len(name) <= 100 or not name.isprintable():
            raise ValueError("invalid name: expected 1 to 100 printable characters")
        identity, secret = secrets.token_hex(6), secrets.token_hex(32)
        with writing(self._database) as connection:
            row = connection.execute(
                insert(keys)
                .values(
                    id=identity, name=name, hash=_hash(secret), scopes=sorted(scopes), created=time.time(),
                    expires=expires, revoked=False,
                )
                .returning(keys)
            ).one()  # fmt: skip
        return _key(row), f"nml_{identity}_{secret}"

    def check(self, text: str) -> Key | None:
        """The key with this text, if it is still valid."""
        form = _FORM.fullmatch(text)
        if form is None:
            return None
        with reading(self._database) as connection:
            row = connection.execute(select(keys).where(keys.c.id == form[1])).first()
        if row is None or not hmac.compare_digest(row.hash, _hash(form[2])):
            return None
        moment = time.time()
        if row.revoked or (row.expires is not None and row.expires <= moment):
            return None
        if moment - (row.last_used or 0.0) > _USE_NOTED_EVERY:
            self._note_use(row.id, moment)
        return _key(row)

    def valid(self, identities: Collection[str]) -> set[str]:
        """Those of these ids whose keys are neither revoked nor expired."""
        with reading(self._database) as connection:
            return set(
                connection.scalars(
                    select(keys.c.id).where(
                        keys.c.id.in_(identities),
                        keys.c.revoked.is_(False),
                        or_(keys.c.expires.is_(None), keys.c.expires > time.time()),
                    )
                )
            )

    def list(self) -> list[Key]:
        """All keys, including revoked and expired ones, oldest first."""
        with reading(self._database) as connection:
            return [_key(row) for row in connection.execute(select(keys).order_by(keys.c.created))]

    def revoke(self, identity: str) -> Key:
        """Refuse the key from now on.

        Raises:
            NotFound: no key has that id.
        """
        with writing(self._database) as connection:
            row = connection.execute(
                update(keys).where(keys.c.id == identity).values(revoked=True).returning(keys)
            ).first()
        if row is None:
            raise NotFound(f"there is no key {identity}")
        return _key(row)

    def _note_use(self, identity: str, moment: float) -> None:
        try:
            with writing(self._database) as connection:
                connection.execute(update(keys).where(keys.c.id == identity).values(last_used=moment))
        except Unavailable:
            pass  # it is only informative: the request must not fail


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _key(row: Row[Any]) -> Key:
    return Key(row.id, row.name, frozenset(row.scopes), row.created, row.expires, row.revoked, row.last_used)
