"""Reads Markdown pages for tests/contract/test_docs.py: links, headings, code blocks and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:(?<=\n\n)|\A)((?: {4}.*\n|\n(?= {4}))+)")
SPAN = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
RUNNABLE = "<!-- runnable -->\n"
ASSIGNMENT = re.compile(r"^[A-Z_]+=")


class Block(NamedTuple):
    """A fenced block; `line` counts from 1."""

    language: str
    text: str
    line: int
    runnable: bool


@dataclass(frozen=True)
class Page:
    """One Markdown file."""

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def prose(self) -> str:
        """The text without its code."""
        return SPAN.sub("", INDENTED.sub("\n", FENCE.sub("", self.text)))

    def blocks(self, *languages: str) -> list[Block]:
        found = [
            Block(each[1], each[2], self.text.count("\n", 0, each.start()) + 1,
                  self.text[: each.start()].endswith(RUNNABLE))
            for each in FENCE.finditer(self.text)
        ]  # fmt: skip
        return [block for block in found if block.language in languages]

    def links(self) -> list[str]:
        return LINK.findall(self.prose)

    def spans(self) -> list[str]:
        """Inline code, as one line each."""
        return [" ".join(span.split()) for span in SPAN.findall(INDENTED.sub("\n", FENCE.sub("", self.text)))]

    def anchors(self) -> set[str]:
        """Names of headings, made as GitHub does."""
        seen: Counter[str] = Counter()
        names = set()
        for title in HEADING.findall(FENCE.sub("", self.text)):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "").strip().lower()
            slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
            names.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
        return names

    def commands(self) -> Iterator[list[str]]:
        """Words of every command in shell blocks and in indented blocks, which may be anything else as well."""
        texts = [block.text for block in self.blocks("sh")]
        texts += INDENTED.findall(FENCE.sub("", self.text))
        for text in texts:
            for line in text.replace("\\\n", " ").splitlines():
                yield from split(line)


def split(line: str) -> Iterator[list[str]]:
    """The commands of a line, each without variables set for it and without what leads to it in a container."""
    for part in re.split(r"\s(?:\||&&)\s", line):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:  # not a shell command: an indented block holds other things too
            continue
        while words and ASSIGNMENT.match(words[0]):
            words = words[1:]
        if words[:3] == ["docker", "compose", "exec"]:
            words = words[4:]
        if ">" in words:
            words = words[: words.index(">")]
        if words:
            yield [words[0].removeprefix(".venv/bin/"), *words[1:]]
