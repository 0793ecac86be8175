"""Variables in compose files and Dockerfiles."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def interpolate(value: Any, variables: Mapping[str, str]) -> Any:
    """`$X`, `${X}`, `${X:-default}`, `${X:+other}`, `${X:?message}` and `$$` in every text of a document."""
    if isinstance(value, dict):
        return {key: interpolate(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolate(each, variables) for each in value]
    return "".join(_filled(value, variables)) if isinstance(value, str) else value


def _filled(text: str, variables: Mapping[str, str]) -> Iterator[str]:
    place = 0
    while (dollar := text.find("$", place)) >= 0:
        yield text[place:dollar]
        if text.startswith("$$", dollar):
            yield "$"
            place = dollar + 2
        elif text.startswith("${", dollar):
            end = _closing(text, dollar)
            yield _expression(text[dollar + 2 : end], variables)
            place = end + 1
        elif name := NAME.match(text, dollar + 1):
            yield variables.get(name.group(), "")
            place = name.end()
        else:
            raise ValueError(f"a lone $ in {text!r}: write $$")
    yield text[place:]


def _closing(text: str, dollar: int) -> int:
    depth = 0
    for place in range(dollar, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0 and place > dollar + 1:
            return place
    raise ValueError(f"{text!r}: a brace is not closed")


def _expression(text: str, variables: Mapping[str, str]) -> str:
    matched = re.fullmatch(r"(\w+)(?:(:?[-+?])(.*))?", text, re.DOTALL)
    if matched is None:
        raise ValueError(f"${{{text}}} is not understood")
    name, operator, rest = matched.groups()
    found = variables.get(name)
    there = bool(found) if (operator or "").startswith(":") else found is not None
    match (operator or "")[-1:]:
        case "-" if not there:
            return str(interpolate(rest, variables))
        case "+":
            return str(interpolate(rest, variables)) if there else ""
        case "?" if not there:
            raise ValueError(f"{name} is needed: {rest}")
    return found or ""
