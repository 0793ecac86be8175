"""The public sets, through PyG's own dataset classes: found on disk, else downloaded, and converted once.

Raw files are looked for in $NML_DATA/<folder>/raw, then in <home>/datasets/<folder>/raw, and else downloaded into the
latter. NML_DATA is only ever read: PyG writes its `processed` folder into a scratch directory that links to the raw
files and is removed afterwards. What remains is the converted graph in <home>/cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import shutil
import tempfile
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.errors import Infrastructure, InvalidInput

if TYPE_CHECKING:  # the catalogue reads this module's table without loading torch
    from trainer.data.graph import Graph

TIMEOUT_SECONDS = 10  # for connecting, and for each silence while downloading
PLANETOID = "https://github.com/kimiyoung/planetoid/raw/master/data"
BENCHMARK = "https://github.com/shchur/gnn-benchmark/raw/master/data/npz"
WIKI = "https://github.com/pmernyei/wiki-cs-dataset/raw/master/dataset"


@dataclass(frozen=True)
class PublicSet:
    """Where a set's files are, and what a complete copy holds: edges are directed and without self loops."""

    family: str  # PyG's class
    folder: str
    url: str
    files: tuple[str, ...]
    nodes: int
    edges: int
    features: int
    classes: int
    sha256: str | None = None  # of all files in order, where reading them runs code (pickles)


def _planetoid(folder: str, nodes: int, edges: int, features: int, classes: int, sha256: str) -> PublicSet:
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    files = tuple(f"ind.{folder.lower()}.{part}" for part in parts)
    return PublicSet("Planetoid", folder, PLANETOID, files, nodes, edges, features, classes, sha256)


# Counts of PyG 2.8 with self loops removed. Wiki-CS: PyG lists 431,726 edges of which 520 are self loops.
SETS = {
    "cora": _planetoid(
        "Cora", 2_708, 10_556, 1_433, 7, "0ce1f9117972bdd087a19062d3decca8abfdfef042468c282c2b977642e057dd"
    ),
    "citeseer": _planetoid(
        "CiteSeer", 3_327, 9_104, 3_703, 6, "cbadbc965a18fe92dd73960a02a21e4e098723aebcdbe7e03c407a3971644413"
    ),
    "pubmed": _planetoid(
        "PubMed", 19_717, 88_648, 500, 3, "34aaa088b00e246edbc2a4ab7c320063b5b07fc3b9839d5540a663f867238d4a"
    ),
    "photo": PublicSet(
        "Amazon", "Photo", BENCHMARK, ("amazon_electronics_photo.npz",), 7_650, 238_162, 745, 8
    ),
    "computers": PublicSet(
        "Amazon", "Computers", BENCHMARK, ("amazon_electronics_computers.npz",), 13_752, 491_722, 767, 10
    ),
    "wikics": PublicSet("WikiCS", "WikiCS", WIKI, ("data.json",), 11_701, 431_206, 300, 10),
    "cs": PublicSet("Coauthor", "CS", BENCHMARK, ("ms_academic_cs.npz",), 18_333, 163_788, 6_805, 15),
    "physics": PublicSet("Coauthor", "Physics", BENCHMARK, ("ms_academic_phy.npz",), 34_493, 495_924, 8_415, 5),
}  # fmt: skip


def load(name: str, home: Path) -> Graph:
    """The set as PyG gives it, features raw; memory-mapped from the cache after the first time.

    Raises:
        Infrastructure: the files are neither on disk nor to be had, or `home` cannot be written.
        InvalidInput: the files are damaged or not this set.
    """
    from trainer.data.graph import Graph

    known, cached = SETS[name], cache_path(name, home)
    if cached.is_dir():
        try:
            return Graph.open(cached)
        except InvalidInput:  # an older format or a damaged disk: it can be made anew
            shutil.rmtree(cached, ignore_errors=True)
    try:
        raw = find_raw(known, home) or _download(name, known, home)
        _refuse_unknown_pickles(known, raw)
        graph = _convert(name, known, raw, home)
        with contextlib.suppress(FileExistsError):  # another process was faster; its copy is as good
            graph.save(cached)
    except OSError as error:
        raise Infrastructure(
            f"{home}: cannot be used to prepare {name} ({error}). Set NML_HOME to a writable folder."
        ) from error
    return Graph.open(cached)


def is_offline(name: str, home: Path) -> bool:
    """Whether the set loads without a network."""
    return cache_path(name, home).is_dir() or find_raw(SETS[name], home) is not None


def cache_path(name: str, home: Path) -> Path:
    """Keyed by PyG's version, because how a set is processed changes between versions."""
    return home / "cache" / f"{name}-pyg{_reader()}"


@cache
def _reader() -> str:
    try:
        return version("torch_geometric")
    except PackageNotFoundError:  # a process that only lists the sets
        return "-absent"


def find_raw(known: PublicSet, home: Path) -> Path | None:
    """The first folder that holds all raw files."""
    for root in _roots(home):
        raw = root / known.folder / "raw"
        if all((raw / file).is_file() for file in known.files):
            return raw
    return None


def _roots(home: Path) -> list[Path]:
    given = os.environ.get("NML_DATA")
    return ([Path(given)] if given else []) + [home / "datasets"]


def _download(name: str, known: PublicSet, home: Path) -> Path:
    """Fetch the raw files; the folder appears once all are there.

    Not PyG's own download: that checks no certificate and waits without limit.
    """
    raw = home / "datasets" / known.folder / "raw"
    raw.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=raw.parent, prefix=".download-") as scratch:
        for file in known.files:
            try:
                with (
                    urllib.request.urlopen(f"{known.url}/{file}", timeout=TIMEOUT_SECONDS) as answer,
                    open(Path(scratch, file), "wb") as out,
                ):
                    shutil.copyfileobj(answer, out)
            except (OSError, http.client.HTTPException) as error:
                looked = " or ".join(str(root / known.folder / "raw") for root in _roots(home))
                raise Infrastructure(
                    f"{name}: {file} is not in {looked}, and {known.url} did not give it ({error}). "
                    f"Connect to the internet, set NML_DATA to a folder with {known.folder}/raw/{file} (PyG's layout), "
                    "or train on a built-in set: data.name=digits."
                ) from error
        raw.mkdir(exist_ok=True)
        for file in known.files:
            os.replace(Path(scratch, file), raw / file)
    return raw


def _refuse_unknown_pickles(known: PublicSet, raw: Path) -> None:
    """Planetoid's files are pickles, which run code when read: accept only the published ones, byte for byte."""
    if known.sha256 is None:
        return
    digest = hashlib.sha256()
    for file in known.files:
        digest.update((raw / file).read_bytes())
    if digest.hexdigest() != known.sha256:
        raise InvalidInput(f"{raw}: the files are not those of {known.folder} as published. {_renew(known)}")


def _convert(name: str, known: PublicSet, raw: Path, home: Path) -> Graph:
    from trainer.data.graph import Graph

    (home / "datasets").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home / "datasets", prefix=f".{known.folder}-") as scratch:
        links = Path(scratch, known.folder, "raw")
        links.mkdir(parents=True)
        for file in known.files:
            (links / file).symlink_to((raw / file).resolve())
        try:
            data = _read_with_pyg(known, Path(scratch))
        except Exception as error:  # whatever a damaged zip, pickle or json raises
            raise InvalidInput(
                f"{raw}: PyG cannot read it ({type(error).__name__}: {error}). {_renew(known)}"
            ) from error

    split = None
    if known.family == "Planetoid":
        split = {part: data[f"{part}_mask"].nonzero()[:, 0] for part in ("train", "val", "test")}
    graph = Graph.from_edges(data.edge_index, data.x, name=name, y=data.y, split=split)
    found = (graph.num_nodes, graph.num_edges, graph.num_features, graph.num_classes)
    expected = (known.nodes, known.edges, known.features, known.classes)
    if found != expected:
        differences = _differences(("nodes", "edges", "features", "classes"), found, expected)
        raise InvalidInput(f"{raw}: not a complete copy of {known.folder}: {differences}. {_renew(known)}")
    return graph


def _read_with_pyg(known: PublicSet, root: Path) -> Any:
    from torch_geometric import datasets

    if known.family == "WikiCS":
        return datasets.WikiCS(str(root / known.folder), is_undirected=True)[0]
    return getattr(datasets, known.family)(str(root), known.folder)[0]


def _differences(names: Iterable[str], found: Iterable[int], expected: Iterable[int]) -> str:
    three = zip(names, found, expected, strict=True)
    return ", ".join(f"{have:,} {name} instead of {want:,}" for name, have, want in three if have != want)


def _renew(known: PublicSet) -> str:
    return (
        f"Delete them and load again, or copy {known.url}/{known.files[0]}{' and the others' * (len(known.files) > 1)}."
    )
