"""Versions of embeddings for people: a list of them, and all about one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from service.cli.report import print_quality, result_console

if TYPE_CHECKING:
    from service.client import Version

STYLES = {"ready": "green", "failed": "red", "damaged": "red", "publishing": "cyan"}


def print_versions(versions: Sequence[Version]) -> None:
    """A line per version."""
    table = Table("version", "aliases", "data set", "rows × dim", "state", "quality", "index (recall@10)", box=None)
    for version in versions:
        table.add_row(
            version.version, Text(", ".join(version.aliases) or "–"), Text(version.dataset), _shape(version),
            _state(version), _quality(version.metrics) or "–", _indexes(version) or "–",
        )  # fmt: skip
    result_console().print(table)


def print_version(version: Version, url: str) -> None:
    """All about one version; its figures at the end, where there are some."""
    console, document = result_console(), version.document
    table = Table(box=None, show_header=False)
    size, links = document.get("bytes"), document.get("links") or {}
    rows: dict[str, Any] = {
        "version": version.version, "name": version.name, "aliases": ", ".join(version.aliases),
        "data set": version.dataset, "state": _state(version), "failure": version.failure,
        "rows × dim": _shape(version), "ids": {"int": "whole numbers", "str": "text"}.get(version.id_type or ""),
        "classes": None if version.classes is None else _some(version.classes),
        "size": None if size is None else f"{size / 1e6:,.1f} MB", "index (recall@10)": _indexes(version),
        "made": document.get("created"), "published": document.get("published"),
        **{name: f"{url}{links[name]}" for name in ("nodes", "lookup", "neighbors") if links.get(name)},
    }  # fmt: skip
    for name, value in rows.items():
        if value not in (None, "", "–"):
            table.add_row(name, value if isinstance(value, Text) else Text(str(value)))
    console.print(table)
    quality = version.metrics.get("eval")
    if isinstance(quality, Mapping):
        print_quality(quality, console)


def _state(version: Version) -> Text:
    return Text(version.state, style=STYLES.get(version.state, ""))


def _shape(version: Version) -> str:
    return "–" if version.rows is None else f"{version.rows:,} × {version.dim}"


def _quality(metrics: Mapping[str, Any]) -> str:
    """The one figure that says most: accuracy of the probe, else how well held-out edges are told, else nothing."""
    quality = metrics.get("eval")
    found = quality if isinstance(quality, Mapping) else {}
    probe, links = found.get("probe") or {}, found.get("links") or {}
    if probe.get("test") is not None:
        return f"accuracy {100 * probe['test']:.2f} %"
    return "" if links.get("auc") is None else f"link AUC {links['auc']:.4f}"


def _indexes(version: Version) -> str:
    parts = []
    for kind, about in version.indexes.items():
        recall = about.get("recall_at_10")
        parts.append(f"{kind} {about.get('state', '')}" if recall is None else f"{kind} ({recall:.3f})")
    return ", ".join(parts)


def _some(names: Sequence[str], most: int = 20) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
