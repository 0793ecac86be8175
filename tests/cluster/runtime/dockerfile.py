"""What a Dockerfile makes of a container: command, environment, user, health check, and the project's files in it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.runtime.interpolation import interpolate

BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # what official base images set


@dataclass(frozen=True)
class Image:
    """What a container gets from its image."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = "root"
    workdir: str = "/"
    healthcheck: Any = None
    stop_signal: str = "SIGTERM"
    files: tuple[tuple[Path, str], ...] = ()  # copied into it from the project: what, and where to


# The only image that is used as it comes. Its entrypoint is not on this machine: see postgres_entrypoint.sh.
OFFICIAL = {
    "postgres": Image(
        entrypoint=("docker-entrypoint.sh",), command=("postgres",), user="postgres", stop_signal="SIGINT",
        environment={"PATH": BASE_PATH, "PGDATA": "/var/lib/postgresql/data"},
    )
}  # fmt: skip


def instructions(path: Path) -> list[tuple[str, str]]:
    """A Dockerfile as (INSTRUCTION, rest) pairs, continued lines joined, comments gone."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    pairs = [line.strip().split(None, 1) for line in text.splitlines() if line.strip()]
    return [(pair[0].upper(), pair[1] if len(pair) > 1 else "") for pair in pairs]


def read_image(
    path: Path, context: Path, target: str | None = None, arguments: Mapping[str, str] | None = None
) -> Image:
    """What the last stage (or `target`) says; a stage built on an earlier one goes on from it."""
    stages: dict[str, dict[str, Any]] = {}
    stage: dict[str, Any] = {}
    known: dict[str, str] = dict(arguments or {})
    for name, rest in instructions(path):
        if name == "FROM":
            words = [word for word in rest.split() if not word.startswith("--")]
            label = words[2] if len(words) == 3 else str(len(stages))
            before = stages.get(words[0], {"environment": {"PATH": BASE_PATH, "LANG": "C.UTF-8"}})
            stage = stages[label] = {**before, "environment": dict(before["environment"])}
        elif name == "ARG":
            argument, _, default = rest.partition("=")
            known.setdefault(argument, default.strip('"'))
        elif name == "ENV":
            for word in shlex.split(rest):
                key, _, value = word.partition("=")
                stage["environment"][key] = interpolate(value, {**known, **stage["environment"]})
        elif name in ("ENTRYPOINT", "CMD"):
            stage["entrypoint" if name == "ENTRYPOINT" else "command"] = _exec_form(rest)
        elif name in ("USER", "WORKDIR", "STOPSIGNAL"):
            stage[{"USER": "user", "WORKDIR": "workdir", "STOPSIGNAL": "stop_signal"}[name]] = rest.strip()
        elif name == "HEALTHCHECK":
            stage["healthcheck"] = _image_health(rest)
        elif name == "COPY" and not rest.startswith("--from"):
            *sources, place = [word for word in rest.split() if not word.startswith("--")]
            stage["files"] = (*stage.get("files", ()), *((context / source, place) for source in sources))
    found = stages[target] if target else stage
    unclear = [place for _, place in found.get("files", ()) if not place.startswith("/") or place.endswith("/")]
    if unclear:
        raise ValueError(f"{path}: COPY to {unclear[0]} is not understood here; name the whole path")
    return Image(**found)


def _exec_form(rest: str) -> tuple[str, ...]:
    if rest.lstrip().startswith("["):
        return tuple(json.loads(rest))
    return ("/bin/sh", "-c", rest)


def _image_health(rest: str) -> dict[str, Any] | None:
    options, _, command = rest.partition("CMD")
    if not command:
        return None
    given: dict[str, Any] = dict(re.findall(r"--([a-z-]+)=(\S+)", options))
    return {**{key.replace("-", "_"): value for key, value in given.items()}, "test": ["CMD", *_exec_form(command)]}
