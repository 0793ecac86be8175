"""docker-compose.yml and the Dockerfiles it builds, read into what a container runtime needs to know.

The commands that the cluster tests start are therefore those of the images and of compose, by construction: nothing is
written down a second time. Understood is what this project uses; a form that is not understood raises, never guesses.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.runtime.dockerfile import OFFICIAL, Image, read_image
from tests.cluster.runtime.interpolation import interpolate

UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
SIZES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}


@dataclass(frozen=True)
class Volume:
    """Where something outside lies inside. `name` is a named volume, or else `source` a path of this machine."""

    target: str
    name: str | None = None
    source: Path | None = None
    read_only: bool = False


@dataclass(frozen=True)
class Health:
    """A command inside, and how often and how long to try it; seconds."""

    argv: tuple[str, ...]
    interval: float = 30.0
    timeout: float = 30.0
    retries: int = 3
    start_period: float = 0.0


@dataclass(frozen=True)
class Service:
    """One service as it would be started."""

    name: str
    image: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    user: str
    workdir: str
    networks: tuple[str, ...]
    volumes: tuple[Volume, ...] = ()
    tmpfs: tuple[str, ...] = ()
    read_only: bool = False
    init: bool = False
    capabilities: tuple[str, ...] = ()
    shm_bytes: int = 64 * 2**20
    health: Health | None = None
    restart: str = "no"
    stop_signal: str = "SIGTERM"
    stop_seconds: float = 10.0
    depends_on: Mapping[str, str] = field(default_factory=dict)  # service: condition
    ports: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()


def read_compose(
    path: Path, variables: Mapping[str, str], commands: Mapping[str, Sequence[str]] | None = None
) -> dict[str, Service]:
    """Every service, profiles included, with `variables` (an .env file) filled in.

    `commands` replaces the command of some, as the words after `docker compose run SERVICE` do.

    Raises:
        ValueError: a needed variable is missing, or the file uses what is not understood here.
    """
    document = interpolate(yaml.safe_load(path.read_text(encoding="utf-8")), variables)
    for name, command in (commands or {}).items():
        document["services"][name]["command"] = list(command)
    return {name: _service(name, given, document, path.parent) for name, given in document["services"].items()}


def internal_networks(path: Path) -> dict[str, bool]:
    """The networks, and whether nothing is routed out of them."""
    networks = yaml.safe_load(path.read_text(encoding="utf-8")).get("networks") or {}
    return {name: bool((given or {}).get("internal")) for name, given in networks.items()}


def needed_variables(path: Path) -> tuple[str, ...]:
    """Names that have no default: `${NAME:?…}`."""
    return tuple(sorted(set(re.findall(r"\$\{(\w+):?\?", path.read_text(encoding="utf-8")))))


def _service(name: str, given: Mapping[str, Any], document: Mapping[str, Any], root: Path) -> Service:
    image = _image_of(given, document["services"], root)
    entrypoint, command = _words(given.get("entrypoint")), _words(given.get("command"))
    if entrypoint is None:
        entrypoint, command = image.entrypoint, image.command if command is None else command
    environment = given.get("environment") or {}
    if isinstance(environment, list):
        environment = dict(each.split("=", 1) for each in environment)
    after = given.get("depends_on") or {}
    return Service(
        name=name,
        image=given.get("image", ""),
        argv=(*entrypoint, *(command or ())),
        environment={**image.environment, **{key: _text(value) for key, value in environment.items()}},
        user=str(given.get("user") or image.user),
        workdir=given.get("working_dir") or image.workdir,
        networks=tuple(given.get("networks") or ("default",)),
        volumes=(
            *(Volume(target, source=source, read_only=True) for source, target in image.files),
            *(_volume(each, document, root) for each in given.get("volumes") or ()),
        ),
        tmpfs=tuple([given["tmpfs"]] if isinstance(given.get("tmpfs"), str) else given.get("tmpfs") or ()),
        read_only=bool(given.get("read_only")),
        init=bool(given.get("init")),
        capabilities=_capabilities(name, given),
        shm_bytes=_size(given.get("shm_size", "64m")),
        health=_health(given.get("healthcheck") or image.healthcheck),
        restart=str(given.get("restart") or "no"),
        stop_signal=given.get("stop_signal") or image.stop_signal,
        stop_seconds=seconds(given.get("stop_grace_period", "10s")),
        depends_on=dict.fromkeys(after, "service_started")
        if isinstance(after, list)
        else {each: how["condition"] for each, how in after.items()},
        ports=tuple(str(each) for each in given.get("ports") or ()),
        profiles=tuple(given.get("profiles") or ()),
    )


def _capabilities(name: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    """Those that it has; a service that keeps the engine's default set is not understood here."""
    if given.get("cap_drop") != ["ALL"]:
        raise ValueError(f"{name}: cap_drop must be [ALL]")
    return tuple(each.lower() for each in given.get("cap_add") or ())


def build_of(given: Mapping[str, Any], services: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """How its image is made: by itself, or by another service that has the same one; none: it comes from elsewhere."""
    same = (each["build"] for each in services.values() if "build" in each and each.get("image") == given.get("image"))
    build = given.get("build") or next(same, None)
    return {"context": build} if isinstance(build, str) else build


def _image_of(given: Mapping[str, Any], services: Mapping[str, Mapping[str, Any]], root: Path) -> Image:
    build = build_of(given, services)
    if build is None:
        return OFFICIAL[given["image"].split(":")[0].split("/")[-1]]
    arguments = {key: _text(value) for key, value in (build.get("args") or {}).items()}
    context = root / build["context"]
    return read_image(context / build.get("dockerfile", "Dockerfile"), context, build.get("target"), arguments)


def _health(given: Mapping[str, Any] | None) -> Health | None:
    if not given or given.get("disable"):
        return None
    test = given["test"]
    kind, *words = test if isinstance(test, list) else ("CMD-SHELL", test)
    if kind not in ("CMD", "CMD-SHELL"):
        raise ValueError(f"healthcheck {kind} is not understood")
    times = {key: seconds(given[key]) for key in ("interval", "timeout", "start_period") if key in given}
    argv = tuple(words) if kind == "CMD" else ("/bin/sh", "-c", words[0])
    return Health(argv, retries=int(given.get("retries", 3)), **times)


def _volume(given: str | Mapping[str, Any], document: Mapping[str, Any], root: Path) -> Volume:
    if isinstance(given, str):
        source, target, *mode = given.split(":")
        read_only = "ro" in mode
    else:
        source, target, read_only = given["source"], given["target"], bool(given.get("read_only"))
    if source in (document.get("volumes") or {}):
        return Volume(target, name=source, read_only=read_only)
    return Volume(target, source=(root / source).resolve(), read_only=read_only)


def _words(given: Any) -> tuple[str, ...] | None:
    if given is None:
        return None
    return tuple(shlex.split(given)) if isinstance(given, str) else tuple(str(word) for word in given)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def seconds(text: Any) -> float:
    """A duration such as 1m30s."""
    parts = re.findall(r"([\d.]+)(ms|s|m|h)?", str(text))
    return sum(float(number) * UNITS[unit] for number, unit in parts)


def _size(text: Any) -> int:
    matched = re.fullmatch(r"([\d.]+)\s*([a-z]*)", str(text).lower())
    if matched is None:
        raise ValueError(f"{text!r} is no size")
    return int(float(matched.group(1)) * SIZES[matched.group(2).replace("ib", "").rstrip("i") or ""])
