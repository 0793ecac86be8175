"""`make sbom`: the software bill of materials of what is installed, with licences, as CycloneDX 1.6 in JSON.

    python docker/sbom.py [--licenses] [> sbom.json]

Every distribution of this environment that constraints.txt pins, and what it needs; `scope` says who: required (the
core, `serve`, `train`, `track`) or excluded (`dev` only). The same environment gives the same bytes. Written over
importlib.metadata because the usual tool for it would bring a dozen packages into the list that it makes.
"""

from __future__ import annotations

import argparse
import json
import sys
import uuid
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OURSELVES = "nml-gcl"
SHIPPED = ("serve", "train", "track")  # extras; the others are for development
CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
UNKNOWN = "not known"
# what classifiers and free texts mean, where that is not open to doubt
SPDX = {
    "Apache": "Apache-2.0", "Apache 2.0": "Apache-2.0", "Apache Software License": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause", "ISC License (ISCL)": "ISC", "MIT License": "MIT",
    "GPL-3.0": "GPL-3.0-only", "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}  # fmt: skip
_VAGUE = ("OSI Approved", "DFSG approved")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python docker/sbom.py", description="bill of materials, CycloneDX in JSON")
    parser.add_argument("--licenses", action="store_true", help="a line for each package and its licence instead")
    document = bill(CONSTRAINTS)
    if parser.parse_args().licenses:
        lines = (f"{each['name']} {each['version']}: {license_of(each)}" for each in document["components"])
    else:
        lines = iter([json.dumps(document, indent=2)])
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def bill(constraints: Path) -> dict[str, Any]:
    """The document."""
    pinned = {line.partition("==")[0] for line in constraints.read_text(encoding="utf-8").splitlines()} - {""}
    found = {canonicalize_name(each.metadata["Name"]): each for each in distributions()}
    shipped = _closure(found, SHIPPED)
    listed = {name: found[name] for name in sorted(found) if name in pinned or name in shipped} | _built(found)
    listed.pop(OURSELVES, None)
    refs = {name: _purl(name, each.version) for name, each in listed.items()}
    ours = distribution(OURSELVES)
    components = [_component(name, each, name in shipped) for name, each in sorted(listed.items())]
    needs = [{"ref": _purl(OURSELVES, ours.version), "dependsOn": _refs(_needs(ours, SHIPPED), refs)}]
    needs += [{"ref": refs[name], "dependsOn": _refs(_needs(each), refs)} for name, each in sorted(listed.items())]
    about = {"type": "application", "name": OURSELVES, "version": ours.version}
    about |= {"bom-ref": _purl(OURSELVES, ours.version), "purl": _purl(OURSELVES, ours.version)}
    content = {"components": components, "dependencies": needs}
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{number}", "version": 1}
    return head | {"metadata": {"component": about | {"licenses": _licenses(ours)}}} | content


def license_of(component: dict[str, Any]) -> str:
    """In a few words, or UNKNOWN."""
    licenses = component.get("licenses", [])
    return " or ".join(each.get("expression") or each["license"]["name"] for each in licenses) or UNKNOWN


def _component(name: str, found: Distribution, is_shipped: bool) -> dict[str, Any]:
    about = {"type": "library", "bom-ref": _purl(name, found.version), "name": name, "version": found.version}
    about |= {"scope": "required" if is_shipped else "excluded", "purl": _purl(name, found.version)}
    licenses = _licenses(found)
    return about | ({"licenses": licenses} if licenses else {})


def _licenses(found: Distribution) -> list[dict[str, Any]]:
    """As an SPDX expression if the metadata has one or means one; else by name; nothing if they do not say."""
    about = found.metadata
    names = [text.rpartition(" :: ")[2] for text in about.get_all("Classifier", []) if text.startswith("License ::")]
    names = [name for name in names if name not in _VAGUE]
    text = (about.get("License") or "").strip()
    given = about.get("License-Expression") or (text if 0 < len(text) <= 100 and "\n" not in text else None)
    for candidate in (given, *names[:1]):
        try:
            if candidate and len(names) <= 1:
                return [{"expression": str(canonicalize_license_expression(SPDX.get(candidate, candidate)))}]
        except InvalidLicenseExpression:
            continue
    return [{"license": {"name": SPDX.get(name, name)}} for name in names or [given] if name]


def _closure(found: dict[Any, Distribution], extras: tuple[str, ...]) -> set[str]:
    """What we, with these extras, need and what that needs."""
    reached: set[tuple[str, str]] = set()
    pending = [(OURSELVES, extra) for extra in ("", *extras)]
    while pending:
        name, extra = pending.pop()
        if (name, extra) in reached or name not in found:
            continue
        reached.add((name, extra))
        for need in _requirements(found[name], (extra,)):
            pending += [(canonicalize_name(need.name), each) for each in ("", *need.extras)]
    return {name for name, _ in reached}


def _built(found: dict[Any, Distribution]) -> dict[Any, Distribution]:
    """Wheels of our own build that no file pins."""
    return {name: found[name] for name in ("pyg-lib", "torch-scatter", "torch-sparse") if name in found}


def _needs(found: Distribution, extras: tuple[str, ...] = ()) -> set[str]:
    return {str(canonicalize_name(need.name)) for need in _requirements(found, ("", *extras))}


def _requirements(found: Distribution, extras: tuple[str, ...]) -> Iterator[Requirement]:
    for text in found.requires or []:
        need = Requirement(text)
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras):
            yield need


def _refs(names: set[str], refs: dict[Any, str]) -> list[str]:
    return sorted(refs[name] for name in names if name in refs)


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version.replace('+', '%2B')}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PackageNotFoundError as error:
        sys.exit(f"{error}: run `make env`, and this with .venv/bin/python")
