"""Checkpoints: weights and optimiser state as safetensors, the rest as JSON, one directory each, complete or absent.

Random streams are named by (seed, purpose, epoch, step), so the progress of the run *is* the generator state
(trainer.data.seeds). A checkpoint may be taken in the middle of an epoch that has many steps.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from trainer.files.atomic import sha256, sync, write_json

log = logging.getLogger("trainer")

_TENSORS, _MANIFEST = "state.safetensors", "manifest.json"


class Stateful(Protocol):
    """What a checkpoint holds: weights and buffers, and the optimisers' moments. A training method is one."""

    optimisers: dict[str, torch.optim.Optimizer]

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any: ...

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]: ...


@dataclass
class Progress:
    """How far a run is: epochs done, steps taken in the next one, and the sums of their figures."""

    epoch: int = 0
    steps: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Count one step."""
        self.steps += 1
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def end_epoch(self) -> dict[str, float]:
        """Count the epoch; returns the means over its steps."""
        means = {name: total / self.steps for name, total in self.sums.items()}
        self.epoch, self.steps, self.sums = self.epoch + 1, 0, {}
        return means


def save_checkpoint(directory: Path, method: Stateful, progress: Progress, *, spec_hash: str, keep: int) -> Path:
    """Write `directory`/epoch-… by renaming a finished temporary one, then drop all but the newest `keep`."""
    steps = progress.steps
    target = directory / (f"epoch-{progress.epoch:07d}" + (f"-step-{steps:09d}" if steps else ""))
    temporary = directory / f".{target.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        tensors, scalars = _flatten(method)
        save_file(tensors, temporary / _TENSORS)
        with (temporary / _TENSORS).open("rb+") as file:
            os.fsync(file.fileno())
        manifest = {
            "epoch": progress.epoch, "steps": steps, "sums": progress.sums, "spec_hash": spec_hash,
            "torch": torch.__version__, "sha256": sha256(temporary / _TENSORS), "scalars": scalars,
        }  # fmt: skip
        write_json(temporary / _MANIFEST, manifest | {"checksum": _checksum(manifest)})
        shutil.rmtree(target, ignore_errors=True)
        os.replace(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(directory)
    for old in checkpoints(directory)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def checkpoints(directory: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return sorted(directory.glob("epoch-*"))


def load_newest(directory: Path, method: Stateful, *, spec_hash: str, whole_epochs_of: Sequence[str] = ()) -> Progress:
    """Put the newest readable checkpoint into `method` and return how far it is; the start if there is none.

    One that is damaged or belongs to another spec is skipped with a warning: older ones may still be good. Of the
    specs in `whole_epochs_of`, only checkpoints between epochs count: their steps are not ours.
    """
    for leftover in directory.glob(".epoch-*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)
    for path in reversed(checkpoints(directory)):
        try:
            manifest = _read_manifest(path)
            before = manifest["spec_hash"] in whole_epochs_of and not manifest["steps"]
            if manifest["spec_hash"] != spec_hash and not before:
                raise ValueError("it belongs to another spec")
            if sha256(path / _TENSORS) != manifest["sha256"]:
                raise ValueError("its checksum does not match")
            tensors = load_file(path / _TENSORS)
            _check_weights(method, tensors)  # half of them would train on as if they were the start
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            log.warning("checkpoint %s is skipped: %s", path, error)
            continue
        _restore(method, tensors, manifest["scalars"])
        return Progress(manifest["epoch"], manifest["steps"], manifest["sums"])
    return Progress()


def _read_manifest(path: Path) -> dict[str, Any]:
    """Raises OSError or ValueError where it is not as it was written."""
    manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(manifest, dict):
        raise ValueError("its manifest is no JSON object")
    checksum = manifest.pop("checksum", None)
    if checksum not in (None, _checksum(manifest)):  # none: an earlier version wrote it
        raise ValueError("the checksum of its manifest does not match")
    return manifest


def _checksum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _check_weights(method: Stateful, tensors: Mapping[str, Tensor]) -> None:
    """Tables that a method keeps may grow and shrink with training; weights may not."""
    names = {f"model.{name}" for name in method.state_dict()}
    weights = {f"model.{name}": value.shape for name, value in method.named_parameters()}
    if names != {name for name in tensors if name.startswith("model.")} or any(
        tensors[name].shape != shape for name, shape in weights.items()
    ):
        raise ValueError("its weights are not those of this model")


def _flatten(method: Stateful) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by dotted name, and the optimisers' settings."""
    tensors = {f"model.{name}": value.detach().contiguous() for name, value in method.state_dict().items()}
    scalars: dict[str, Any] = {}
    for name, optimiser in method.optimisers.items():
        state = optimiser.state_dict()
        scalars[name] = [
            {key: value for key, value in group.items() if key != "params"} for group in state["param_groups"]
        ]
        for index, moments in state["state"].items():
            for moment, value in moments.items():
                tensors[f"optimiser.{name}.{index}.{moment}"] = value.detach().contiguous()
    return tensors, scalars


def _restore(method: Stateful, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
    method.load_state_dict(
        {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    )
    for name, optimiser in method.optimisers.items():
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith(f"optimiser.{name}."):
                index, moment = key.rsplit(".", 2)[1:]
                state.setdefault(int(index), {})[moment] = value
        groups = optimiser.state_dict()["param_groups"]
        for group, stored in zip(groups, scalars[name], strict=True):
            group.update({key: value for key, value in stored.items() if key != "lr"})  # lr: the plan has it
        optimiser.load_state_dict({"state": state, "param_groups": groups})
