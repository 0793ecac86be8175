"""Which Ray a parallel run uses, and how it proves that it may: settings for the process that talks to Ray.

Ray reads its settings from the environment, once, when it is imported. So they are made here and given to a process of
its own, and the caller's environment and its own use of Ray stay as they are.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from trainer.errors import InvalidInput

LOCAL = "local"  # Ray's own word for: start a cluster on this machine
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # what Ray does elsewhere by default: listen on 127.0.0.1
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1",  # how soon Ray Train notices that a worker is done or dead
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths of a spec mean the caller's folder
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # workers without a GPU are told so by ourselves
}


def require_ray(what: str) -> None:
    """Raises InvalidInput, with the remedy, where Ray is not installed."""
    if find_spec("ray") is None:
        raise InvalidInput(f"{what} needs Ray, which is not installed. Run pip install 'nml-gcl[train]'.")


def ray_address(environ: Mapping[str, str]) -> str:
    """RAY_ADDRESS if set, else the cluster this process is connected to, else `local`."""
    if address := environ.get("RAY_ADDRESS", "").strip():
        return address
    ray = sys.modules.get("ray")  # a process that never imported Ray is not connected to it
    if ray is not None and ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    return LOCAL


def ray_environment(environ: Mapping[str, str], address: str, *, home: Path | None = None) -> dict[str, str]:
    """The environment for the process that talks to the Ray at `address`, with its authentication spelled out.

    A local cluster gets a token of its own, known to its processes only. For any other the user's is taken
    (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token); RAY_AUTH_MODE=disabled says that it has none.

    Raises:
        InvalidInput: a cluster was named, and neither a token nor RAY_AUTH_MODE=disabled.
    """
    environment = {**environ, **_SETTINGS}
    if address == LOCAL:
        environment.pop("RAY_AUTH_TOKEN_PATH", None)
        environment.pop("RAY_ADDRESS", None)
        return environment | _LOOPBACK | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    mode = environ.get("RAY_AUTH_MODE", "").strip() or "token"
    if mode == "token" and not _has_token(environ, home or Path.home()):
        raise InvalidInput(
            f"no token for the Ray cluster at {address}. Set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file with it. "
            "If the cluster uses none, and only trusted people reach it, set RAY_AUTH_MODE=disabled."
        )
    return environment | {"RAY_AUTH_MODE": mode}


def _has_token(environ: Mapping[str, str], home: Path) -> bool:
    if environ.get("RAY_AUTH_TOKEN"):
        return True
    path = Path(environ.get("RAY_AUTH_TOKEN_PATH") or home / ".ray" / "auth_token")
    if not path.is_file() and environ.get("RAY_AUTH_TOKEN_PATH"):
        raise InvalidInput(f"RAY_AUTH_TOKEN_PATH names {path}, which is not a file. Put the cluster's token there.")
    return path.is_file() and path.stat().st_size > 0


def python_path(environ: Mapping[str, str]) -> dict[str, str]:
    """PYTHONPATH with which other processes find the same `trainer`: a source tree need not be installed."""
    root = Path(__file__).resolve().parents[2]
    if root.name in ("site-packages", "dist-packages"):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(root), environ.get("PYTHONPATH")]))}
