"""What all requests of a process have together, and what one key may have of it: bytes of answers, places in a queue.

The guard notes in the request's context which key asks, so that nobody in between has to pass it on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from service.api.problems import Problem, unavailable

_owner: ContextVar[str | None] = ContextVar("owner", default=None)


def asked_by(owner: str | None) -> None:
    """From here on, this request is that key's (its id; none: no key)."""
    _owner.set(owner)


class Shares:
    """Counts what is held, and by whom. Without keys there is nobody to share with.

    A key's share counts once half of all is taken: until then nobody has to wait for it. Whoever holds nothing yet may
    take any amount: what is too much for a request is refused elsewhere.
    """

    def __init__(self, most: int, most_per_key: int, *, too_many: str, seconds: int):
        """too_many: what a refusal says, with {} for " of this key"; seconds: when to try again."""
        self.most, self._most_per_key, self._too_many, self._seconds = most, most_per_key, too_many, seconds
        self.taken, self._of_key = 0, Counter[str]()

    @contextmanager
    def take(self, amount: int = 1, *, must: bool = False) -> Iterator[None]:
        """Hold so much meanwhile, if it must be beyond what there is.

        Raises:
            Problem: 429, this key holds too much already; 503, all of them do.
        """
        owner = _owner.get()
        if not must:
            self._check(owner, amount)
        self._add(owner, amount)
        try:
            yield
        finally:
            self._add(owner, -amount)

    def check_room(self) -> None:
        """Raises Problem as `take` does, if there is no room at all: before something large is made in vain."""
        self._check(_owner.get(), 1)

    def _check(self, owner: str | None, amount: int) -> None:
        of_key = 0 if owner is None else self._of_key[owner]
        is_short = 2 * (self.taken + amount) > self.most
        if is_short and of_key and of_key + amount > self._most_per_key:
            raise Problem(
                429, f"{self._too_many.format(' of this key')}; wait until one is done",
                headers={"Retry-After": str(self._seconds)}, kind="quota",
            )  # fmt: skip
        if self.taken and self.taken + amount > self.most:
            raise unavailable(f"{self._too_many.format('')}; try again in a moment", seconds=self._seconds)

    def _add(self, owner: str | None, amount: int) -> None:
        self.taken += amount
        if owner is not None:
            self._of_key[owner] += amount
            if not self._of_key[owner]:
                del self._of_key[owner]
