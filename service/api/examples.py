"""Requests that work as they stand, for the OpenAPI document; tests send every one of them."""

from __future__ import annotations

from typing import Any

JOBS: dict[str, Any] = {
    "smallest": {
        "summary": "The defaults, on a set that comes with the service",
        "value": {"data": {"name": "digits"}},
    },
    "small": {
        "summary": "A run of seconds",
        "value": {
            "data": {"name": "synthetic", "synthetic": {"nodes": 500, "classes": 3, "features": 32}},
            "encoder": {"hidden": 64, "dim": 32},
            "method": {"metric": {"hidden": 32}},
            "optimiser": {"epochs": 20},
            "evaluation": {"probe_epochs": 100},
        },
    },
    "named": {
        "summary": "With a name and notes to find it by",
        "value": {"data": {"name": "digits"}, "name": "first try", "priority": 5, "metadata": {"team": "graphs"}},
    },
    "published": {
        "summary": "The paper's settings for Cora, with another seed",
        "value": {"preset": "nml-official", "data": {"name": "cora"}, "run": {"seed": 7}},
    },
    "sampled": {
        "summary": "A large graph, by batches",
        "value": {
            "data": {"name": "synthetic", "synthetic": {"nodes": 200_000}},
            "sampling": {"negatives": "batch", "batch_size": 1024, "num_neighbors": [10, 10]},
            "encoder": {"hidden": 128, "dim": 64},
            "evaluation": {"figures": False},
        },
    },
}
PATCHES: dict[str, Any] = {
    "sooner": {"summary": "Start it before others", "value": {"priority": 10}},
    "notes": {
        "summary": "Another name, one note more, one fewer",
        "value": {"name": "second try", "metadata": {"team": "graphs", "draft": None}},
    },
}
SWEEPS: dict[str, Any] = {
    "default": {
        "summary": "The paper's search space on digits",
        "value": {"base": {"data": {"name": "digits"}}, "trials": 20, "concurrency": 1},
    },
    "chosen": {
        "summary": "Two fields, judged without labels",
        "value": {
            "base": {"data": {"name": "digits"}, "encoder": {"hidden": 64, "dim": 32}, "optimiser": {"epochs": 40}},
            "space": {
                "method.temperature": {"kind": "uniform", "low": 0.2, "high": 0.8},
                "method.inner_steps": {"kind": "integer", "low": 1, "high": 8},
            },
            "objective": "link_auc",
            "trials": 10,
            "concurrency": 1,
        },
    },
}
