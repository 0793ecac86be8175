"""Dashboard, alerts and guide speak of figures that the service really tells, and the guide of all of them.

The figures are those of a running app. Expressions are read by a parser of PromQL, not by searching for words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser as promql
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from service.settings import Settings
from tests.service.api.server import SMALL, serving

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
BY_PROMETHEUS = {"job", "instance"}  # labels that it adds to everything
CLOSED = ("state", "kind", "status", "method")  # labels whose values we know all of
STATUSES = {"2xx", "3xx", "4xx", "5xx"}
VARIABLES = {"$__rate_interval": "5m", "$job": "nml", "$route": ".+"}


class Told(NamedTuple):
    """What a scrape tells of one series name."""

    family: str
    labels: set[str]
    values: dict[str, set[str]]  # by label


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    """Every name of a running app's /metrics, after requests of several kinds."""
    home = tmp_path_factory.mktemp("home")
    with serving(Settings(home=home, poll_seconds=0.02, memory_limit="8GB")) as live:
        live.submit(SMALL)
        for path in ("/v1/jobs", "/v1/jobs/absent", "/nothing"):
            live.http.get(path)
        live.http.get("/v1/jobs/" + live.http.get("/v1/jobs").json()["items"][0]["id"])
        live.store.dispatchers.beat("one", host="here", pid=1, info={})
        text = live.http.get("/metrics").text
    found: dict[str, Told] = {"up": Told("up", set(), {})}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            one = found.setdefault(sample.name, Told(family.name, set(), {}))
            one.labels.update(sample.labels)
            for label, value in sample.labels.items():
                one.values.setdefault(label, set()).add(value)
    return found


class Use(NamedTuple):
    """An expression, and where it stands."""

    place: str
    expression: str
    legend: str = ""


def dashboard() -> dict[str, Any]:
    return json.loads((DOCKER / "grafana" / "nml.json").read_text(encoding="utf-8"))


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DOCKER / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return group["rules"]


def uses() -> Iterator[Use]:
    document = dashboard()
    for panel in document["panels"]:
        for target in panel.get("targets", ()):
            yield Use(f"panel {panel['title']}", target["expr"], target["legendFormat"])
    for annotation in document["annotations"]["list"]:
        legend = annotation["titleFormat"] + annotation["textFormat"]
        yield Use(f"annotation {annotation['name']}", annotation["expr"], legend)
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
            yield Use(f"variable {variable['name']}", f"count by ({label}) ({name})", f"{{{{{label}}}}}")
    for rule in rules():
        legend = "".join(f"{{{{{label}}}}}" for label in re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        yield Use(f"alert {rule['alert']}", rule["expr"], legend)


def nodes(expression: str) -> list[Any]:
    """Every part of an expression, Grafana's variables filled in."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    found: list[Any] = []
    promql.walk(promql.parse(expression), found.append)
    return found


@pytest.mark.parametrize("use", list(uses()), ids=lambda use: use.place)
def test_expression_uses_only_what_the_service_tells(use: Use, told: dict[str, Told]) -> None:
    parts = nodes(use.expression)
    selectors = [one for one in parts if isinstance(one, promql.VectorSelector)]
    assert selectors
    labels = set(BY_PROMETHEUS)
    for selector in selectors:
        assert selector.name in told, f"{use.place}: no figure is called {selector.name}"
        one = told[selector.name]
        labels |= one.labels
        for matcher in selector.matchers.matchers:
            assert matcher.name in one.labels | BY_PROMETHEUS, f"{use.place}: {selector.name} has no {matcher.name}"
            if matcher.name in CLOSED:
                known = one.values[matcher.name] | (STATUSES if matcher.name == "status" else set())
                assert set(matcher.value.split("|")) <= known, f"{use.place}: {matcher.value}"
    for one in parts:
        if isinstance(one, promql.AggregateExpr) and one.modifier is not None:
            assert set(one.modifier.labels) <= labels, f"{use.place}: {one.modifier.labels}"
    assert set(re.findall(r"{{\s*(\w+)\s*}}", use.legend)) <= labels, f"{use.place}: {use.legend}"


def test_counters_are_never_shown_as_they_are() -> None:
    """A counter says something by how it grows, and begins anew with its process."""
    counter = re.compile(r"_(total|count|sum|bucket)$")
    for use in uses():
        parts = nodes(use.expression)
        ranged = [one.vector_selector.name for one in parts if isinstance(one, promql.MatrixSelector)]
        named = [one.name for one in parts if isinstance(one, promql.VectorSelector) and counter.search(one.name)]
        if not use.place.startswith("variable"):  # that asks for labels only
            assert sorted(name for name in ranged if counter.search(name)) == sorted(named), use.place


def test_every_figure_of_the_service_is_on_the_dashboard(told: dict[str, Told]) -> None:
    shown = {one.name for use in uses() for one in nodes(use.expression) if isinstance(one, promql.VectorSelector)}
    families = {one.family for one in told.values() if one.family.startswith("nml_")}
    assert families - {told[name].family for name in shown} == set()


def test_every_figure_of_the_service_is_described_in_the_guide(told: dict[str, Told]) -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert "`process_*`" in text  # prometheus_client's, which Prometheus' own guide describes one by one
    described = set(re.findall(r"\bnml_\w+", text))
    for name, one in told.items():
        if one.family.startswith("nml_"):
            assert {name, one.family, f"{one.family}_total", f"{one.family}_info"} & described, f"{name}: not described"
    exported = set(told) | {one.family for one in told.values()}
    assert described <= exported, "described, but not told"


def test_dashboard_can_be_imported_anywhere() -> None:
    document = dashboard()
    assert document["schemaVersion"] >= 39
    assert "id" not in document
    variables = {one["name"]: one for one in document["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    numbers = [panel["id"] for panel in document["panels"]]
    assert len(numbers) == len(set(numbers))
    occupied: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        assert panel["title"]
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }  # fmt: skip
        assert not cells & occupied, panel["title"]
        assert max(x for x, _ in cells) < 24
        occupied |= cells
        if panel["type"] == "row":
            continue
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
    assert sum(panel["type"] == "row" for panel in document["panels"]) >= 4


def test_alerts_say_what_happened_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}
        promql.parse_duration(rule.get("for", "1s"))
        text = " ".join(rule["annotations"].values())
        for setting in re.findall(r"NML_(\w+)", text):
            assert setting.lower() in Settings.model_fields, setting


def test_prometheus_is_let_in_by_a_key_from_a_file(tmp_path: Path) -> None:
    (scrape,) = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    assert scrape["authorization"] == {"type": "Bearer", "credentials_file": "nml.key"}
    host = scrape["static_configs"][0]["targets"][0]
    allowed = (host.partition(":")[0],)
    with serving(Settings(home=tmp_path, require_key=True, allowed_hosts=allowed, memory_limit="8GB")) as live:
        _, key = live.store.keys.create("prometheus", scopes=("read",))
        headers = {"Authorization": f"{scrape['authorization']['type']} {key}", "Host": host}
        assert live.http.get("/metrics", headers=headers).status_code == 200
        assert live.http.get("/metrics", headers={"Host": host}).status_code == 401
