"""Questions about vectors that work as they stand on a table with ids 0, 1, 2, …"""

from __future__ import annotations

from typing import Any

LOOKUPS: dict[str, Any] = {
    "few": {"summary": "Three nodes by their ids", "value": {"ids": [0, 1, 2]}},
}
NEIGHBORS: dict[str, Any] = {
    "nodes": {"summary": "The five nearest of two nodes", "value": {"ids": [0, 1], "k": 5}},
    "near": {"summary": "Only those that score 0.5 at least", "value": {"ids": [0], "k": 5, "min_score": 0.5}},
    "among": {"summary": "Only among some nodes", "value": {"ids": [0], "k": 2, "filter": {"ids": [1, 2, 3]}}},
    "dot": {"summary": "By dot product, with vectors", "value": {"ids": [0], "metric": "dot", "include_vectors": True}},
}
RECOMMENDATIONS: dict[str, Any] = {
    "examples": {"summary": "Like two nodes, unlike a third", "value": {"positive": [0, 1], "negative": [2], "k": 3}},
}
PAIRS: dict[str, Any] = {
    "each": {"summary": "Three nodes, each to each", "value": {"ids": [0, 1, 2]}},
    "others": {"summary": "One node to two others, by dot", "value": {"ids": [0], "others": [1, 2], "metric": "dot"}},
}
COMPARISONS: dict[str, Any] = {
    "latest": {"summary": "With the newest version, on 50 nodes", "value": {"other": "latest", "sample": 50, "k": 5}},
}
CLASSES: dict[str, Any] = {
    "few": {
        "summary": "Labels of four nodes; what of a fifth?",
        "value": {"ids": [0, 1, 2, 3], "labels": ["cat", "cat", "dog", "dog"], "predict": [4]},
    },
}
