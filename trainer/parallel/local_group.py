"""How workers on one machine meet: through a file, so that nobody else can join.

Ray Train has them meet at a TCPStore, which torch binds to every interface and which asks no one who they are. Across
machines it is the only way; there the cluster's network must be closed to strangers (docs/operations.md).
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4


def local_torch_config(folder: Path, *, backend: str, timeout_s: int) -> Any:
    """Ray Train's TorchConfig for workers that all see `folder`, which only this user may enter."""
    import ray
    from ray.train.torch import TorchConfig

    base: Any = TorchConfig().backend_cls

    class MeetAtFile(base):
        def on_start(self, worker_group: Any, backend_config: Any) -> None:
            meeting = folder / f"group-{uuid4().hex}"  # a new one each time that workers are started
            size = len(worker_group)
            ray.get(
                [
                    worker_group.execute_single_async(rank, _join, meeting, rank, size, backend, timeout_s)
                    for rank in range(size)
                ]
            )

    class LocalTorchConfig(TorchConfig):
        @property
        def backend_cls(self) -> Any:
            return MeetAtFile

    return LocalTorchConfig(backend=backend, timeout_s=timeout_s)


def _join(meeting: Path, rank: int, size: int, backend: str, timeout_s: int) -> None:
    import torch.distributed as dist

    dist.init_process_group(
        backend, init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
    )
