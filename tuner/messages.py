"""What a trial says to the driver through ray.tune.report: one JSON text, since Tune flattens anything else."""

from __future__ import annotations

import json
from typing import Any, Literal

KEY = "message"
Kind = Literal["running", "beat", "report", "failing", "final"]
Message = dict[str, Any]


def packed(kind: Kind, **fields: Any) -> dict[str, str]:
    """What ray.tune.report takes."""
    return {KEY: json.dumps({"kind": kind, **fields})}


def unpacked(result: dict[str, Any]) -> Message | None:
    """The message in a result of Tune; None in one that Tune made up itself."""
    text = result.get(KEY)
    return None if text is None else json.loads(text)
