"""What we count for Prometheus about requests; what it asks about jobs is read from the store when it asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from service.store.records import Kind

KINDS: tuple[Kind, ...] = ("train", "sweep", "import", "publish", "index")
STATES = ("queued", "running", "cancelling", "succeeded", "failed", "cancelled")
# A status read takes under a millisecond; an upload waits for its check.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_NO_ROUTE = "none"


class Measures:
    """Of one app."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "nml_http_request_seconds", "Seconds until the answer to a request begins.", ("route", "method", "status"),
            registry=self.registry, buckets=_BUCKETS,
        )  # fmt: skip
        self._of: dict[tuple[str, str, int], Histogram] = {}
        self.refused = Counter(
            "nml_http_rate_limited_total", "Requests refused for coming too fast.", registry=self.registry
        )
        self.watchers = Gauge("nml_event_watchers", "Open event streams.", registry=self.registry)

    def observe(self, route: Any, method: str, status: int, seconds: float) -> None:
        """One answered request. Route, not path: paths are without number."""
        template: str = _NO_ROUTE if route is None else route.path
        key = (template, method if template != _NO_ROUTE else "any", status // 100)
        series = self._of.get(key)
        if series is None:
            series = self._of[key] = self._seconds.labels(template, key[1], f"{key[2]}xx")
        series.observe(seconds)


def exposition(measures: Measures, figures: Mapping[str, Any] | None, dispatchers: int | None) -> bytes:
    """The text that Prometheus reads; without figures, where the database does not answer, what we know ourselves."""
    registry = CollectorRegistry()
    registry.register(_Once(_families(figures, dispatchers)))
    return generate_latest(measures.registry) + generate_latest(registry)


class _Once:
    """A collector of families that are made already."""

    def __init__(self, families: Iterable[Metric]):
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families

    def describe(self) -> Iterable[Metric]:
        return ()


def _families(figures: Mapping[str, Any] | None, dispatchers: int | None) -> Iterator[Metric]:
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
        "nml_lease_overdue_seconds", "How long the most overdue lease has been without renewal; 0 is well.",
        value=figures["longest_lease_overdue_seconds"],
    )  # fmt: skip
    yield GaugeMetricFamily(
        "nml_epochs_per_second", "Epochs per second of all running jobs together.", value=figures["epochs_per_second"]
    )
    retries = CounterMetricFamily("nml_retries", "Jobs tried again, by kind of failure.", labels=("kind",))
    for kind, count in figures["retries"].items():
        retries.add_metric((kind,), count)
    yield retries
    yield CounterMetricFamily(
        "nml_tracker_errors", "Times that MLflow could not be told something.", value=figures["tracker_errors"]
    )
