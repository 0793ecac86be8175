"""Wrong documents, made from the schemas: each field of a spec in turn gets what it must not have.

Where a schema gains a field, or a field a bound, the documents that go beyond follow by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from trainer.config import TrainSpec
from trainer.methods import BY_NAME
from tuner.config import SweepSpec

Schema = dict[str, Any]
NOT_NUMBERS = {"nan": float("nan"), "infinite": float("inf"), "minus-infinite": float("-inf")}


class BadSpec(NamedTuple):
    """A document with one thing wrong, and the dotted path to it."""

    name: str
    document: dict[str, Any]
    field: str


def bad_train_specs() -> Iterator[BadSpec]:
    """Every field of the training spec, and of every method."""
    schema = TrainSpec.model_json_schema()
    yield from _wrong(schema, {})
    for name, method in BY_NAME.items():
        own = schema["$defs"][method.__name__]
        settings = own | {"properties": {key: inner for key, inner in own["properties"].items() if key != "name"}}
        for path, what, value in _values(settings, schema["$defs"], ("method",)):
            if len(path) == 1:  # not a setting, but the method as a whole, which is among those above
                continue
            document = _placed(path, value, {"method": {"name": name}})
            yield BadSpec(f"{name}: {'.'.join(path)} {what}", document, ".".join(path))


def bad_sweep_specs() -> Iterator[BadSpec]:
    """Every field of the sweep spec, except that of its base only the sections: the fields are those above."""
    schema = SweepSpec.model_json_schema()
    training = schema["$defs"]["TrainSpec"]["properties"]
    for name in training:
        training[name] = {"type": "object"} if "$ref" in training[name] else training[name]
    yield from _wrong(schema, {"base": {}})


def _wrong(schema: Schema, around: dict[str, Any]) -> Iterator[BadSpec]:
    for path, name, value in _values(schema, schema["$defs"], ()):
        yield BadSpec(f"{'.'.join(path)} {name}", _placed(path, value, around), ".".join(path))


def _placed(path: tuple[str, ...], value: Any, around: dict[str, Any]) -> dict[str, Any]:
    """`around`, with the value at that path."""
    first, rest = path[0], path[1:]
    return around | {first: _placed(rest, value, around.get(first) or {}) if rest else value}


def _values(schema: Schema, defs: Schema, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Path, name and value of all that is wrong at or below a place."""
    listed = schema.get("anyOf", [schema])
    kinds = [_resolved(kind, defs) for either in listed for kind in either.get("oneOf", [either])]
    for kind in kinds:
        if "properties" in kind and not any("oneOf" in either for either in listed):  # of a union, each by its tag
            yield (*path, "no_such_key"), "unknown-key", 1
            for name, inner in kind["properties"].items():
                yield from _values(inner, defs, (*path, name))
    if path:
        for name, value in _wrong_for(kinds):
            yield path, name, value


def _resolved(schema: Schema, defs: Schema) -> Schema:
    return defs[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _wrong_for(kinds: list[Schema]) -> Iterator[tuple[str, Any]]:
    """What none of these kinds takes. Text that reads as a number, and whole numbers as 1.0, are taken."""
    types = {kind.get("type") for kind in kinds}
    if types == {None}:  # any value at all
        return
    if "null" not in types:
        yield "null", None
    if "array" not in types:
        yield "list", []
        yield "list-of-one", [1]
    if "object" not in types:
        yield "object", {}
        yield "object-of-one", {"value": 1}
    if "string" not in types:
        yield "word", "plenty"
        yield "empty-text", ""
        yield "code", "__import__('os')"
    if not types & {"number", "integer", "boolean"}:
        yield "number", 1.5
        yield "true", True
    if "boolean" in types:
        yield "other-number", 2
        yield "half", 0.5
    if types & {"number", "integer"}:
        yield from NOT_NUMBERS.items()
    for kind in kinds:
        yield from _beyond(kind)


def _beyond(kind: Schema) -> Iterator[tuple[str, Any]]:
    """What has the right type and is wrong all the same."""
    match kind.get("type"):
        case "integer" | "number":
            yield from _beyond_bounds(kind)
        case "string":
            yield from _beyond_text(kind)
        case "array":
            yield from _beyond_list(kind)


def _beyond_bounds(kind: Schema) -> Iterator[tuple[str, Any]]:
    if kind["type"] == "integer":
        yield "half", 1.5
    if "minimum" in kind:
        yield "below", kind["minimum"] - 1
    if "exclusiveMinimum" in kind:
        yield "at-open-minimum", kind["exclusiveMinimum"]
        yield "below", kind["exclusiveMinimum"] - 1
    if "maximum" in kind:
        yield "above", kind["maximum"] + 1
    if "exclusiveMaximum" in kind:
        yield "at-open-maximum", kind["exclusiveMaximum"]
        yield "above", kind["exclusiveMaximum"] + 1
    if {"minimum", "exclusiveMinimum"} & kind.keys():
        yield "far-below", -(10**30)
    if {"maximum", "exclusiveMaximum"} & kind.keys():
        yield "far-above", 10**30
        yield "beyond-all-floats", 10**400


def _beyond_text(kind: Schema) -> Iterator[tuple[str, Any]]:
    yield "nul", "a\0b"
    if "enum" in kind or "const" in kind:
        first = kind["enum"][0] if "enum" in kind else kind["const"]
        yield "unknown", "plenty"
        yield "upper-case", first.upper()
        yield "space", f"{first} "
        yield "nothing", ""
    if "maxLength" in kind:
        yield "long", "x" * (kind["maxLength"] + 1)
    if kind.get("minLength"):
        yield "nothing", ""
    if "pattern" in kind:  # of names that become files: no paths, no spaces; of others: nothing that moves a cursor
        texts = {
            "up": "../../etc/passwd",
            "root": "/etc/passwd",
            "blank": "a b",
            "break": "a\n",
            "dots": "..",
            "escape": "a\x1b[2J",
        }
        yield from ((name, text) for name, text in texts.items() if not re.fullmatch(kind["pattern"], text))


def _beyond_list(kind: Schema) -> Iterator[tuple[str, Any]]:
    items = kind.get("items") or kind["prefixItems"][0]
    good = items.get("minimum", 0) if items.get("type") in ("integer", "number") else {}
    if "maxItems" in kind:
        yield "too-many", [good] * (kind["maxItems"] + 1)
    if kind.get("minItems"):
        yield "too-few", [good] * (kind["minItems"] - 1)
    count = kind.get("minItems", 1)
    for name, value in _wrong_for([items]):
        yield f"first-{name}", [value, *[good] * (count - 1)]
