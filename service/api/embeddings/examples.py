"""Questions about vectors that work as they stand on a table with ids 0, 1, 2, …"""

from __future__ import annotations

from typing import Any

LOOKUPS: dict[str, Any] = {
    "few": {"summary": "Three nodes by their ids", "value": {"ids": [0, 1, 2]}},
}
NEIGHBORS: dict[str, Any] = {
    "nodes": {"summary": "The five nearest of two nodes", "value": {"ids": [0, 1], "k": 5}},
    "among": {"summary": "Only among some nodes", "value": {"ids": [0], "k": 2, "filter": {"ids": [1, 2, 3]}}},
    "dot": {"summary": "By dot product, with vectors", "value": {"ids": [0], "metric": "dot", "include_vectors": True}},
}
CLASSES: dict[str, Any] = {
    "few": {
        "summary": "Labels of four nodes; what of a fifth?",
        "value": {"ids": [0, 1, 2, 3], "labels": ["cat", "cat", "dog", "dog"], "predict": [4]},
    },
}
