"""What somebody on the network can connect to while a run with several workers trains on this machine: nothing."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from trainer.config import parse_spec
from trainer.parallel.ray_train import fit_parallel

STAND_INS = Path(__file__).parents[1] / "trainer" / "parallel"


def listening() -> dict[str, str]:
    """The address of each socket that a process of ours listens on, with the process's name."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            for connection in process.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    found[f"{connection.laddr.ip}:{connection.laddr.port}"] = process.name()
    return found


def is_open(address: str) -> bool:
    return not ipaddress.ip_address(address.rpartition(":")[0].removeprefix("::ffff:")).is_loopback


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_on_this_machine_listen_on_loopback_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STAND_INS))
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    seen: dict[str, str] = {}

    def look(event: dict[str, Any]) -> bool:
        if event["type"] == "epoch":  # so the workers have met
            seen.update(listening())
        return event["type"] == "epoch"

    spec = parse_spec({"optimiser": {"epochs": 10_000}, "run": {"workers": 2}})
    fit_parallel(spec, tmp_path, on_event=look, cpus=2, train="standins:train")
    assert seen, "Ray's own processes listen, at least"
    assert {address: name for address, name in seen.items() if is_open(address)} == {}
