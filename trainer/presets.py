"""Named settings that know their values per data set; every method has one under its own name.

    nml train --dataset cora --preset nml-official
    nml train --dataset cora --method grace

`complete` is how a document that says little becomes one that says all: what it leaves out is taken from its preset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainer.config import TrainSpec, parse_spec
from trainer.errors import InvalidInput
from trainer.files.documents import merged as merged
from trainer.methods import BY_NAME, METHODS
from trainer.spec.data import FilesSpec

DEFAULT_PRESET = "nml"
PRESETS: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {  # name: its method, and sections by data set
    preset: (name, sections)
    for method in METHODS
    for name in [str(method.model_fields["name"].default)]
    for preset, sections in method.presets().items()
}


def preset_document(preset: str, dataset: str) -> dict[str, Any]:
    """The spec document of a preset for a data set, ready for overrides.

    Raises:
        InvalidInput: there is no such preset, or it has no settings for this data set.
    """
    if preset not in PRESETS:
        raise InvalidInput(f"there is no preset {preset!r}; choose one of {', '.join(PRESETS)}")
    method, sections = PRESETS[preset]
    document = sections(dataset)
    named = {"preset": preset, "data": {"name": dataset}, "method": {"name": method}}
    return merged(document, named)


def preset_spec(preset: str, dataset: str | Mapping[str, Any] | FilesSpec = "digits") -> TrainSpec:
    """The validated spec of a preset for a data set, or for own files.

        preset_spec("nml", "cora")
        preset_spec("nml", {"nodes": "nodes.csv", "edges": "edges.csv"})           what data.files says
        preset_spec("nml-official", "cora").with_(data={"name": "files", "files": {"npz": "mine.npz"}})

    Raises:
        InvalidInput: there is no such preset, or it has no settings for this data set.
    """
    if isinstance(dataset, str):
        return parse_spec(preset_document(preset, dataset))
    files = dataset.model_dump(mode="json") if isinstance(dataset, FilesSpec) else dict(dataset)
    return parse_spec(merged(preset_document(preset, "files"), {"data": {"files": files}}))


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """The document with what it leaves out as its preset has it; with `"preset": null` it stays as it is.

    The preset is the one it names, else that of its method, else `nml`. What cannot be completed comes back unchanged:
    validation says what is wrong with it.

    Raises:
        InvalidInput: a preset that does not exist, is of another method, or does not know the data set.
    """
    method, data = _method_name(document.get("method")), document.get("data", {})
    dataset = data.get("name", "digits") if isinstance(data, dict) else None
    preset = document.get("preset", DEFAULT_PRESET if method is None else method)
    if not isinstance(preset, str) or not isinstance(dataset, str) or method not in (None, *BY_NAME):
        return document
    under = preset_document(preset, dataset)
    if method is not None and method != under["method"]["name"]:
        raise InvalidInput(
            f"preset {preset} is of method {under['method']['name']}, and method is {method}. Leave one out."
        )
    over = document if not isinstance(document.get("method"), str) else {**document, "method": {"name": method}}
    return merged(under, over)


def _method_name(method: Any) -> str | None:
    """Of `"grace"` and of `{"name": "grace", ...}`; none where the document does not say."""
    name = method.get("name") if isinstance(method, dict) else method
    return name if isinstance(name, str) else None
