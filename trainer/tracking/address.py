"""Where MLflow is, and how to name it without its password."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from trainer.process.home import nml_home


def tracking_uri(home: Path | None = None) -> str:
    """MLFLOW_TRACKING_URI if set, else the SQLite database in `home`."""
    database = (home or nml_home()).expanduser().resolve() / "mlflow.db"
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{database.as_posix()}"


def ui_command(home: Path | None = None, uri: str | None = None) -> str:
    """How a person looks at the runs: a command for a database, the address of a server."""
    uri = uri or tracking_uri(home)
    if uri.startswith(("http://", "https://")):
        return f"open {without_password(uri)}"
    return f"mlflow ui --backend-store-uri {shlex.quote(without_password(uri))}"


def describe(error: BaseException) -> str:
    """An error in one line of at most 600 characters, without passwords."""
    if isinstance(error, ModuleNotFoundError) and error.name == "mlflow":
        return "MLflow is not installed: pip install mlflow, or set run.track=false"
    return without_password(f"{type(error).__name__}: {error}")[:600]


def without_password(text: str) -> str:
    """Text whose addresses name neither user nor password."""
    return re.sub(r"://[^/@\s]+@", "://***@", text)
