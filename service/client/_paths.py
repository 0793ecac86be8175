"""Where things are: paths from names that come from outside, and lists that come in pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from service.client._session import Session
from trainer.errors import InvalidInput

PAGE = 100
LONGEST_QUOTED = 4_000  # characters of a URL for what may be any text; proxies take 8,000 or so in all
_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def path_of(*parts: str) -> str:
    """Parts joined; the second and later ones come from outside and may not change where the path leads."""
    return "/".join([parts[0], *map(segment, parts[1:])])


def segment(text: str) -> str:
    """The text, if it can be an id or name of the service's.

    Raises:
        InvalidInput: it cannot.
    """
    if not _SEGMENT.fullmatch(text):
        raise InvalidInput(f"{text!r} is not a valid id or name; use letters, digits, dot, dash and underscore")
    return text


def quoted(node: int | str) -> str:
    """A node id, which may be any text, as the end of a path. Dots too: `..` would lead elsewhere."""
    return quote(str(node), safe="").replace(".", "%2E")


def can_be_in_query(texts: Sequence[Any]) -> bool:
    """Whether a list of texts can stand in the query string of a URL. An empty one would leave no trace there."""
    try:
        return 0 < sum(len(f"&labels={quote(text, safe='')}") for text in texts) <= LONGEST_QUOTED
    except (TypeError, UnicodeEncodeError):  # no text, or none that a URL can hold
        return False


def pages(session: Session, path: str, query: Mapping[str, Any], limit: int | None) -> Iterator[Any]:
    """The items of a list, asked for page by page; at most `limit`."""
    asked = {name: value for name, value in query.items() if value is not None}
    left = limit
    while left is None or left > 0:
        page = session.document("GET", path, params={**asked, "limit": PAGE if left is None else min(PAGE, left)})
        yield from page["items"]
        left = None if left is None else left - len(page["items"])
        if page["next"] is None:
            return
        asked["cursor"] = page["next"]
