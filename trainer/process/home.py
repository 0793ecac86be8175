"""Where the product keeps what it makes outside run directories: caches, the default tracking database."""

from __future__ import annotations

import os
from pathlib import Path


def nml_home() -> Path:
    """`NML_HOME`, else ~/.nml, as an absolute path; it need not exist yet."""
    return Path(os.environ.get("NML_HOME") or "~/.nml").expanduser().resolve()
