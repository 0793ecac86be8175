"""Metrics for Prometheus: requests are counted as they come, jobs and disk are looked up when it asks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from service.api.edge.multiprocess_metrics import pids
from service.store.records import Kind

KINDS: tuple[Kind, ...] = ("train", "sweep", "import", "publish", "index")
STATES = ("queued", "running", "cancelling", "succeeded", "failed", "cancelled")
# A status read takes under a millisecond; an upload waits for its check.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_NO_ROUTE = "none"
# The methods of our routes and those that browsers send; clients may make up others, and each would be new series.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMetrics:
    """Of one app; with a folder that this process has joined (`together`), of all that did."""

    def __init__(self, folder: Path | None = None) -> None:
        self.registry, self._folder = CollectorRegistry(), folder
        self._seconds = Histogram(
            "nml_http_request_seconds", "Seconds until the answer to a request begins.", ("route", "method", "status"),
            registry=self.registry, buckets=_BUCKETS,
        )  # fmt: skip
        self._of: dict[tuple[str, str, int], Histogram] = {}
        self.refused = Counter(
            "nml_http_rate_limited_total", "Requests refused for coming too fast.", registry=self.registry
        )
        self.watchers = Gauge(
            "nml_event_watchers", "Open event streams.", registry=self.registry, multiprocess_mode="livesum"
        )
        self.watchers.set(0)  # whoever had this slot before us is gone, and those who watched with it

    def observe(self, route: Any, method: str, status: int, seconds: float) -> None:
        """One answered request, by its route's template: there is no limit to the number of paths."""
        template: str = _NO_ROUTE if route is None else route.path
        if template == _NO_ROUTE:
            method = "any"
        elif method not in METHODS:
            method = "other"
        key = (template, method, status // 100)
        series = self._of.get(key)
        if series is None:
            series = self._of[key] = self._seconds.labels(template, key[1], f"{key[2]}xx")
        series.observe(seconds)

    def families(self) -> Iterator[Metric]:
        """All of it, with the memory and the age of the processes that count."""
        for family in self._counted():
            # when a series began: with several processes nobody knows, so nobody tells
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            if family.samples:
                yield family
        yield from _processes({"1": os.getpid()} if self._folder is None else pids(self._folder))

    def _counted(self) -> list[Metric]:
        if self._folder is not None:
            try:
                return list(MultiProcessCollector(None, path=str(self._folder)).collect())
            except (OSError, ValueError, RuntimeError):  # somebody has tidied the folder away
                pass
        return list(self.registry.collect())


@dataclass(frozen=True)
class ServiceStatus:
    """What is looked up when Prometheus asks; none: it does not answer."""

    version: str
    figures: Mapping[str, Any] | None = None  # of the store
    dispatchers: int | None = None
    free_bytes: int | None = None  # of the disk that holds home


def exposition(metrics: RequestMetrics, around: ServiceStatus) -> bytes:
    """The text that Prometheus reads; without figures, where the database does not answer, what we know ourselves."""
    registry = CollectorRegistry()
    registry.register(_Once([*metrics.families(), *_families(around)]))
    return generate_latest(registry)


class _Once:
    """A collector of families that are made already."""

    def __init__(self, families: Iterable[Metric]):
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families

    def describe(self) -> Iterable[Metric]:
        return ()


def _processes(found: Mapping[str, int]) -> Iterator[Metric]:
    """What the kernel knows of each process, which one gets the label `process`; one that is gone is left out."""
    together: dict[str, Metric] = {}
    for name, pid in found.items():
        for family in ProcessCollector(pid=lambda pid=pid: pid, registry=None).collect():  # type: ignore[misc]
            whole = together.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                whole.add_sample(sample.name, {"process": name}, sample.value)
    yield from together.values()


def _families(around: ServiceStatus) -> Iterator[Metric]:
    figures, dispatchers = around.figures, around.dispatchers
    yield InfoMetricFamily("nml_build", "The version that runs.", value={"version": around.version})
    if around.free_bytes is not None:
        yield GaugeMetricFamily(
            "nml_disk_free_bytes", "Room left where jobs and embeddings are kept.", value=around.free_bytes
        )
    yield GaugeMetricFamily("nml_database_up", "Whether the database answers.", value=float(figures is not None))
    if figures is None or dispatchers is None:
        return
    yield GaugeMetricFamily("nml_dispatchers", "Dispatchers seen lately.", value=dispatchers)
    jobs = GaugeMetricFamily("nml_jobs", "Jobs by kind and state.", labels=("kind", "state"))
    for kind in KINDS:
        for state in STATES:
            jobs.add_metric((kind, state), figures["jobs"].get((kind, state), 0))
    yield jobs
    yield GaugeMetricFamily(
        "nml_queue_age_seconds", "How long the oldest queued job has waited.", value=figures["oldest_queued_seconds"]
    )
    yield GaugeMetricFamily(
        "nml_lease_overdue_seconds", "Seconds by which the most overdue lease is late; 0 if none is.",
        value=figures["longest_lease_overdue_seconds"],
    )  # fmt: skip
    yield GaugeMetricFamily(
        "nml_epochs_per_second", "Epochs per second of all running jobs together.", value=figures["epochs_per_second"]
    )
    retries = CounterMetricFamily("nml_retries", "Retried attempts, by kind of failure.", labels=("kind",))
    for kind, count in figures["retries"].items():
        retries.add_metric((kind,), count)
    yield retries
    yield CounterMetricFamily("nml_tracker_errors", "Failed writes to MLflow.", value=figures["tracker_errors"])
