"""No cycles between the folders of a package: data walks through them one way (docs/design.md).

A node is a folder directly below a package, or a file at its root. What a package's `__init__` re-exports for its users
does not count, and nobody within the package imports it from there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.contract.test_imports import PACKAGES, imports, sources

# Cycles that are still there, by their nodes. One that is gone must leave this list: it only ever shrinks.
KNOWN: list[set[str]] = []

Edges = Mapping[tuple[str, str], list[str]]  # from node, to node: the imports that make the edge, as file:line


def edges_of(files: Iterable[tuple[Path, str]]) -> Edges:
    """Which node imports which.  files: paths below the root, with their text."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for file, source in files:
        if len(file.parts) == 2 and file.stem == "__init__":
            continue
        here = ".".join(file.with_suffix("").parts[:2])
        for item in imports(source, file):
            there = ".".join(item.module.split(".")[:2])
            if there.split(".")[0] in PACKAGES and there != here:
                found[here, there].append(f"{file.as_posix()}:{item.line}: imports {item.module}")
    return found


def cycles(edges: Edges) -> list[set[str]]:
    """Groups of nodes that reach each other."""
    next_to: dict[str, set[str]] = defaultdict(set)
    for start, end in edges:
        next_to[start].add(end)
    reached = {node: _reach(node, next_to) for node in list(next_to)}
    groups: list[set[str]] = []
    for node, others in reached.items():
        group = {other for other in others if node in reached.get(other, ())}
        if group and group not in groups:
            groups.append(group)
    return groups


def _reach(node: str, next_to: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    ahead = [*next_to.get(node, ())]
    while ahead:
        one = ahead.pop()
        if one not in seen:
            seen.add(one)
            ahead += next_to.get(one, ())
    return seen


def read(root: Path) -> list[tuple[Path, str]]:
    return [(path.relative_to(root), path.read_text(encoding="utf-8")) for path in sources(root)]


def test_folders_import_one_way(repo_root):
    edges = edges_of(read(repo_root))
    found = cycles(edges)
    new = [group for group in found if group not in KNOWN]
    lines = [line for group in new for (a, b), made in edges.items() if {a, b} <= group for line in made]
    assert not new, f"cycles between {new}:\n" + "\n".join(lines)
    gone = [group for group in KNOWN if group not in found]
    assert not gone, f"these cycles are gone, take them off the list: {gone}"


def test_nobody_imports_the_face_of_its_own_package(repo_root):
    found = []
    for file, source in read(repo_root):
        if len(file.parts) == 2 and file.stem == "__init__":
            continue
        for item in imports(source, file):
            package, _, name = item.module.partition(".")
            part = repo_root / package / name.split(".")[0]
            if package == file.parts[0] and not (part.is_dir() or part.with_suffix(".py").exists()):
                found.append(f"{file.as_posix()}:{item.line}: imports {item.module}")
    assert not found, "import it from where it is defined:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "files, expected",
    [
        ({"trainer/a/x.py": "from trainer.b import y", "trainer/b/y.py": "import trainer.c.z"}, []),
        ({"trainer/a/x.py": "from trainer.b import y", "trainer/b/y.py": "def f():\n    import trainer.a.z"},
         [{"trainer.a", "trainer.b"}]),
        ({"trainer/a.py": "from trainer.b.c import y", "trainer/b/d.py": "from ..e import y",
          "trainer/e/f.py": "from trainer import a"}, [{"trainer.a", "trainer.b", "trainer.e"}]),
        ({"trainer/a/x.py": "from trainer.a import y", "trainer/a/y.py": "from . import x"}, []),
        ({"trainer/__init__.py": "from trainer.a import x", "trainer/a/x.py": "import numpy"}, []),
    ],
)  # fmt: skip
def test_checker_finds_cycles_through_folders_and_files(files, expected):
    assert cycles(edges_of((Path(name), source) for name, source in files.items())) == expected
