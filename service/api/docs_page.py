"""The OpenAPI document as a plain HTML page.

Made here because FastAPI's own pages (Swagger UI, ReDoc) load scripts from a CDN, and the service must work offline.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator
from typing import Any

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 58rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430 }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #ccd; text-transform: capitalize }
code, pre { font: 14px/1.45 ui-monospace, monospace; background: #f2f4f8; border-radius: 4px; padding: .1em .3em }
pre { padding: .8em; overflow-x: auto }
details { border: 1px solid #dde; border-radius: 6px; margin: .5rem 0; padding: .5rem .8rem }
summary { cursor: pointer }
summary b { display: inline-block; min-width: 4.2rem }
summary span { color: #567 }
table { border-collapse: collapse }
td { padding: .15rem 1rem .15rem 0; vertical-align: top }
@media (prefers-color-scheme: dark) {
  body { background: #14181f; color: #dde3ec } code, pre { background: #222a35 } details { border-color: #333d4a }
  summary span { color: #9ab } a { color: #8bf }
}
"""
POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page(document: dict[str, Any]) -> str:
    """The routes by tag, each with what it takes and answers."""
    about = document["info"]
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{_text(about["title"])}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>',
        f"<h1>{_text(about['title'])} {_text(about['version'])}</h1>{_prose(about.get('description', ''))}",
        '<p>Everything here, with all schemas, as one document: <a href="/openapi.json">/openapi.json</a>.</p>',
    ]
    for tag in document["tags"]:
        parts.append(f"<h2>{_text(tag['name'])}</h2>{_prose(tag.get('description', ''))}")
        parts.extend(_operations(document, tag["name"]))
    return "\n".join(parts)


def _operations(document: dict[str, Any], tag: str) -> Iterator[str]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if tag in operation.get("tags", ()):
                yield _operation(method, path, operation)


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    given = [(f"{one['name']} <i>({one['in']})</i>", _described(one)) for one in operation.get("parameters", ())]
    statuses = [(status, _prose(found["description"])) for status, found in operation["responses"].items()]
    return (
        f"<details><summary><b>{method.upper()}</b> <code>{_text(path)}</code> "
        f"<span>{_text(operation.get('summary', ''))}</span></summary>{_prose(operation.get('description', ''))}"
        f"{_table('Parameters', given)}{''.join(_body(operation.get('requestBody')))}{_table('Answers', statuses)}"
        "</details>"
    )


def _described(parameter: dict[str, Any]) -> str:
    schema = parameter["schema"]
    known = [f"{key} {json.dumps(schema[key])}" for key in _BOUNDS if schema.get(key) is not None]
    needed = ["required"] if parameter.get("required") and parameter["in"] != "path" else []
    return _prose("; ".join(filter(None, [parameter.get("description", ""), *needed, *known])))


def _body(body: dict[str, Any] | None) -> Iterator[str]:
    for kind, content in (body or {}).get("content", {}).items():
        schema = content["schema"]
        name = schema.get("$ref", "").rpartition("/")[2]
        yield f"<h4>Body: {_text(kind)}{f', <code>{_text(name)}</code>' if name else ''}</h4>"
        fields = schema.get("properties", {})
        yield _table("", [(_text(field), _prose(found.get("description", ""))) for field, found in fields.items()])
        for title, example in content.get("examples", {}).items():
            text = json.dumps(example["value"], indent=2, ensure_ascii=False)
            yield f"<p>{_text(example.get('summary', title))}</p><pre>{_text(text)}</pre>"


def _table(title: str, rows: list[tuple[str, str]]) -> str:
    if not rows:
        return ""
    lines = "".join(f"<tr><td>{name}</td><td>{text}</td></tr>" for name, text in rows)
    return f"{f'<h4>{title}</h4>' if title else ''}<table>{lines}</table>"


def _prose(text: str) -> str:
    """Paragraphs, lists and `code`, which is all the Markdown that our descriptions have."""
    made = []
    for block in filter(None, map(str.strip, text.split("\n\n"))):
        inline = re.sub(r"`([^`]+)`", r"<code>\1</code>", _text(block))
        items = re.split(r"^- ", inline, flags=re.MULTILINE)
        made.append(f"<ul>{''.join(f'<li>{one}</li>' for one in items[1:])}</ul>" if items[1:] else f"<p>{inline}</p>")
    return "".join(made)


def _text(value: Any) -> str:
    return html.escape(str(value))


_BOUNDS = ("default", "enum", "minimum", "exclusiveMinimum", "maximum", "minLength", "maxLength")
