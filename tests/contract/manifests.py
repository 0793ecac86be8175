"""Kubernetes manifests as tests read them: what a kustomization renders to, and what NetworkPolicies let through."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.cluster.runtime.compose_file import build_of

Document = dict[str, Any]
COMPONENT = "app.kubernetes.io/component"
OUTSIDE = "outside"
CLUSTER_WIDE = {"Namespace"}


def render(folder: Path) -> list[Document]:
    """What `kubectl kustomize` prints, of the few things that our kustomizations use; others are refused."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    known = {"apiVersion", "kind", "resources", "namespace", "patches"}
    assert set(kustomization) <= known, set(kustomization) - known
    found: list[Document] = []
    for name in kustomization["resources"]:
        place = folder / name
        found += render(place) if place.is_dir() else _documents(place)
    for document in found:
        if "namespace" in kustomization and document["kind"] not in CLUSTER_WIDE:
            document["metadata"]["namespace"] = kustomization["namespace"]
    for patch in kustomization.get("patches", ()):
        target, operations = patch["target"], yaml.safe_load((folder / patch["path"]).read_text(encoding="utf-8"))
        (document,) = (
            one for one in found if (one["kind"], one["metadata"]["name"]) == (target["kind"], target["name"])
        )
        for operation in operations:
            _patch(document, operation)
    return found


def _documents(file: Path) -> list[Document]:
    # dumped and read again: anchors would let two places share one object
    documents = yaml.safe_load_all(file.read_text(encoding="utf-8"))
    return [yaml.safe_load(yaml.dump(document, Dumper=_NoAliases)) for document in documents]


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _patch(document: Document, operation: Mapping[str, Any]) -> None:
    """JSON patch: only adding to the end of a list."""
    *path, last = operation["path"].strip("/").split("/")
    assert (operation["op"], last) == ("add", "-"), operation
    place: Any = document
    for step in path:
        place = place[step]
    place.append(operation["value"])


class Pod(NamedTuple):
    """A pod template, wherever it stands."""

    owner: str  # Deployment/api, RayCluster/ray/head, …
    template: Document

    @property
    def labels(self) -> dict[str, str]:
        return self.template["metadata"]["labels"]

    @property
    def component(self) -> str:
        return self.labels[COMPONENT]

    @property
    def spec(self) -> Document:
        return self.template["spec"]

    @property
    def container(self) -> Document:
        (one,) = self.spec["containers"]
        return one


def pods(documents: Iterable[Document]) -> Iterator[Pod]:
    for document in documents:
        owner = f"{document['kind']}/{document['metadata']['name']}"
        if document["kind"] == "Deployment":
            yield Pod(owner, document["spec"]["template"])
        elif document["kind"] == "RayCluster":
            yield Pod(f"{owner}/head", document["spec"]["headGroupSpec"]["template"])
            for group in document["spec"]["workerGroupSpecs"]:
                yield Pod(f"{owner}/{group['groupName']}", group["template"])


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """A label selector; an empty one matches everything."""
    assert set(selector) <= {"matchLabels", "matchExpressions"}, selector
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for expression in selector.get("matchExpressions", ()):
        assert expression["operator"] == "In", expression
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return True


class Network:
    """What NetworkPolicies let through: both the sender's and the receiver's policies must allow a connection."""

    def __init__(self, documents: Iterable[Document], labels: Mapping[str, Mapping[str, str]]):
        self._policies = [one["spec"] for one in documents if one["kind"] == "NetworkPolicy"]
        self._labels = labels  # of the pods of each component

    def allows(self, source: str, target: str, port: int) -> bool:
        return self._one_way(source, target, port, "Egress") and self._one_way(target, source, port, "Ingress")

    def _one_way(self, own: str, other: str, port: int, direction: str) -> bool:
        if own == OUTSIDE:
            return True
        applying = [
            policy for policy in self._policies
            if direction in policy["policyTypes"] and matches(policy["podSelector"], self._labels[own])
        ]  # fmt: skip
        if not applying:  # nothing is said, so everything goes
            return True
        rules = [rule for policy in applying for rule in policy.get(direction.lower(), ())]
        peers = "to" if direction == "Egress" else "from"
        return any(self._is_peer(rule.get(peers), other) and _has_port(rule.get("ports"), port) for rule in rules)

    def _is_peer(self, peers: list[Document] | None, other: str) -> bool:
        if not peers:
            return True
        return any(self._is(peer, other) for peer in peers)

    def _is(self, peer: Document, other: str) -> bool:
        if "ipBlock" in peer:
            return other == OUTSIDE
        if "namespaceSelector" in peer:  # of other namespaces; DNS
            return False
        return other != OUTSIDE and matches(peer["podSelector"], self._labels[other])


def _has_port(ports: list[Document] | None, port: int) -> bool:
    return not ports or any(one["port"] == port and one.get("protocol", "TCP") == "TCP" for one in ports)


def compose_command(root: Path, compose: Document, service: str) -> list[str]:
    """The whole command of a compose service: the image's entrypoint, and its own words with their defaults."""
    one = compose["services"][service]
    build = build_of(one, compose["services"])
    assert build is not None
    text = (root / build["dockerfile"]).read_text(encoding="utf-8")
    found = re.findall(r"^ENTRYPOINT (\[.*\])$", text, flags=re.MULTILINE)
    entrypoint = one.get("entrypoint") or (yaml.safe_load(found[-1]) if found else [])
    return [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in [*entrypoint, *one["command"]]]


def size(quantity: str) -> int:
    """Bytes of a Kubernetes quantity such as 8Gi."""
    number, unit = re.fullmatch(r"(\d+)([KMGT]i)", quantity).groups()  # type: ignore[union-attr]
    return int(number) << 10 * ("KMGT".index(unit[0]) + 1)
