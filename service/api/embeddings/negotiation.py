"""Content negotiation: the media type of an answer (Accept), and whether the client has it already (If-None-Match)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from service.api.problems import Problem

JSON = "application/json"
RAW = "application/octet-stream"  # little-endian float32, row after row
NPY = "application/x-npy"
ARROW = "application/vnd.apache.arrow.stream"

IMMUTABLE = b"private, max-age=31536000, immutable"  # a version never changes
NO_CACHE = b"private, no-cache"  # an alias may point elsewhere by then
_LONGEST = 300  # bytes of a header that is worth remembering

Headers = Iterable[tuple[bytes, bytes]]


def negotiate(accept: bytes | None, offered: Sequence[str]) -> str:
    """The media type that the client prefers; the first one offered where it prefers several equally, or none.

    Raises:
        Problem: 406, it wants none of them.
    """
    if accept is None or accept == b"*/*":
        return offered[0]
    forms = tuple(offered)
    found = (_remembered if len(accept) <= _LONGEST else _best)(accept, forms)
    if found is None:
        raise Problem(
            406, f"Accept: no acceptable media type (expected one of {', '.join(forms)})", headers={"Vary": "Accept"}
        )
    return found


def _best(accept: bytes, offered: tuple[str, ...]) -> str | None:
    wishes = [_wish(part) for part in accept.decode("latin-1").lower().split(",")]
    best, best_quality = None, 0.0
    for form in offered:
        main = form.partition("/")[0]
        ranks = {"*/*": 0, f"{main}/*": 1, form: 2}
        # the most specific range that covers it decides, as RFC 9110 has it
        fitting = [(ranks[kind], quality) for kind, quality in wishes if kind in ranks]
        quality = max(fitting)[1] if fitting else 0.0
        if quality > best_quality:
            best, best_quality = form, quality
    return best


_remembered = lru_cache(maxsize=512)(_best)


def _wish(part: str) -> tuple[str, float]:
    """A range of media types and its quality; parameters other than q are not looked at."""
    kind, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                quality = float(value)
            except ValueError:
                return kind, 0.0
            return kind, quality if 0 <= quality <= 1 else 0.0
    return kind, 1.0


def accept_and_match(headers: Headers) -> tuple[bytes | None, bytes | None]:
    """Accept and If-None-Match of a request; each may be sent in several lines, which then count as one."""
    accept = match = None
    for name, value in headers:
        if name == b"accept":
            accept = value if accept is None else accept + b"," + value
        elif name == b"if-none-match":
            match = value if match is None else match + b"," + value
    return accept, match


def matches_tag(match: bytes | None, tag: bytes) -> bool:
    """Whether If-None-Match names this entity tag (with its quotes), so that 304 is the answer."""
    if match is None:
        return False
    if match == tag or match.strip() == b"*":
        return True
    return any(part.strip().removeprefix(b"W/") == tag for part in match.split(b","))  # our tags hold no comma
