"""Spec documents as people write them: JSON or YAML files, and `--set section.key=value` on a command line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from trainer.errors import InvalidInput


def read_document(path: str | Path) -> Any:
    """Read a JSON or YAML file; both are data only, no tags or code."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read as a text file ({error}). Give a JSON or YAML spec.") from error
    try:
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise InvalidInput(f"{path}: not valid JSON or YAML: {error}") from error


def apply_overrides(document: dict[str, Any], overrides: list[str]) -> dict[str, Any]:
    """Set dotted keys, `a.b=c`; values are read as YAML, so 0.5, true, null and [0.4, 0.4] mean what they look like."""
    result: dict[str, Any] = json.loads(json.dumps(document))
    for item in overrides:
        key, equals, text = item.partition("=")
        if not equals or not all(key.split(".")):
            raise InvalidInput(f"--set {item}: write it as section.key=value, such as method.temperature=0.4")
        try:
            set_value(result, key, _number_or_yaml(text))
        except InvalidInput as error:
            raise InvalidInput(f"--set {item}: {error}") from error
    return result


def set_value(document: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted key in place; sections on the way that are missing are made.

    Raises:
        InvalidInput: something on the way is a value.
    """
    node = document
    *parents, last = path.split(".")
    for parent in parents:
        child = node.get(parent)
        if child is None:
            child = node[parent] = {}
        if not isinstance(child, dict):
            raise InvalidInput(f"{parent} is a value, not a section")
        node = child
    node[last] = value


def merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over`, with what it leaves out taken from `under`, section by section and key by key."""
    both = {
        key: merged(under[key], value) if isinstance(value, dict) and isinstance(under.get(key), dict) else value
        for key, value in over.items()
    }
    return under | both


def value_at(document: dict[str, Any], path: str) -> Any:
    """The value of a dotted key; None where there is none."""
    node: Any = document
    for part in path.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node


def leaf_paths(document: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted keys of all values that are not sections."""
    for key, value in document.items():
        if isinstance(value, dict):
            yield from leaf_paths(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _number_or_yaml(text: str) -> Any:
    try:  # YAML 1.1 reads 5e-4 as a string; people mean the number
        return float(text) if not text.lstrip("+-").isdigit() else int(text)
    except ValueError:
        return yaml.safe_load(text)
