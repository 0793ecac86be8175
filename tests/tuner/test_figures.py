"""Pictures exist for whatever a sweep found, and values lie where a reader expects them."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.axes import axes_of, log_ticks
from tuner.config import SweepSpec, parse_sweep
from tuner.figures import draw_all, draw_dimension, draw_history
from tuner.journal import Report, TrialRecord
from tuner.parallel_coordinates import write_parallel

SPACE = {
    "method.reg.coefficient": {"kind": "loguniform", "low": 0.3, "high": 300},
    "method.inner_steps": {"kind": "integer", "low": 1, "high": 10},
    "method.temperature": {"kind": "uniform", "low": 0.1, "high": 1},
    "optimiser.weight_decay": {"kind": "choice", "values": [0.0, 1e-4, 1e-1]},
    "method.metric.kind": {"kind": "choice", "values": ["siamese_negcos", "uniform"]},
    "encoder.hidden": {"kind": "choice", "values": [64, 128]},
    "method.metric.hidden": {"kind": "integer", "low": 16, "high": 512},
}
CHANGES = {
    "method.reg.coefficient": 3.0, "method.inner_steps": 2, "method.temperature": 0.5,
    "optimiser.weight_decay": 0.0, "method.metric.kind": "uniform", "encoder.hidden": 64, "method.metric.hidden": 100,
}  # fmt: skip
PICTURES = {
    f"objective-vs-{name}.png"
    for name in ("coefficient", "inner_steps", "temperature", "weight_decay", "kind", "encoder-hidden", "metric-hidden")
}


@pytest.fixture
def spec() -> SweepSpec:
    return parse_sweep({"base": {"method": {"metric": {"kind": "siamese_negcos"}}}, "space": SPACE})


def trial(number: int, state: str = "finished", value: float | None = 0.5, reports: int = 0, **changes) -> TrialRecord:
    told = [Report(0, epoch, value or 0.1, {}, "continue") for epoch in range(1, reports + 1)]
    origin = "start" if number == 0 else "search"
    return TrialRecord(number, origin, CHANGES | changes, state=state, value=value, reports=told, epoch=reports)


def drawn(directory: Path, spec: SweepSpec, *trials: TrialRecord) -> set[str]:
    paths = draw_all(directory, spec, {record.number: record for record in trials})
    assert {path.name for path in directory.iterdir()} == {path.name for path in paths}  # and nothing temporary
    for path in paths:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
    return {path.name for path in paths}


def test_a_sweep_of_all_states_gets_every_picture(tmp_path: Path, spec):
    found = drawn(
        tmp_path / "figures", spec, trial(0, reports=4), trial(1, value=0.7, reports=4), trial(2, "stopped", 0.4, 2),
        trial(3, "failed", None, 1), trial(4, "running", None, 3), trial(5, "waiting", None),
        trial(6, "ended", None, 2),
    )  # fmt: skip
    assert found == PICTURES | {"history.png", "curves.png", "parallel.html"}


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5, 0.5]])
@pytest.mark.parametrize("path", ["method.reg.coefficient", "method.metric.kind"])
def test_one_trial_or_equal_values_can_be_drawn(tmp_path: Path, path, values):
    spec = parse_sweep({"base": {}, "space": {path: SPACE[path]}})
    trials = [trial(number, value=value) for number, value in enumerate(values)]
    field = path.split(".")[-1]
    assert drawn(tmp_path, spec, *trials) == {f"objective-vs-{field}.png", "history.png", "parallel.html"}


def test_if_all_failed_only_the_history_is_drawn(tmp_path: Path, spec):
    assert drawn(tmp_path, spec, trial(0, "failed", None), trial(1, "failed", None)) == {"history.png"}


def test_a_sweep_without_trials_has_no_pictures(tmp_path: Path, spec):
    assert drawn(tmp_path, spec) == set()


def places(spec: SweepSpec, path: str, *trials: TrialRecord):
    axis = next(axis for axis in axes_of(spec, {record.number: record for record in trials}) if axis.path == path)
    return axis, [axis.places[record.number] for record in trials]


def test_a_log_range_gives_each_factor_of_ten_the_same_room(spec):
    coefficient = "method.reg.coefficient"
    axis, at = places(spec, coefficient, *(trial(n, **{coefficient: 10.0**n}) for n in range(3)))
    assert axis.kind == "log"
    assert at[2] - at[1] == pytest.approx(at[1] - at[0])
    assert [text for _, text in axis.ticks] == ["1", "10", "100"]
    assert [place for place, _ in axis.ticks] == pytest.approx(at)


def test_zero_has_a_place_left_of_the_smallest_choice(spec):
    decay = "optimiser.weight_decay"
    axis, at = places(spec, decay, *(trial(n, **{decay: value}) for n, value in enumerate((0.0, 1e-4, 0.1))))
    assert axis.kind == "log"  # over 2 decades apart
    assert axis.low < at[0] < at[1] < at[2] < axis.high
    assert [text for _, text in axis.ticks] == ["0", "1e-4", "0.1"]


def test_a_start_beyond_the_space_still_lies_on_the_axis(spec):
    coefficient = "method.reg.coefficient"
    axis, at = places(spec, coefficient, trial(0, **{coefficient: 0.0}), trial(1, **{coefficient: 5000.0}))
    assert axis.low < at[0] < at[1] < axis.high


def test_words_stand_in_a_row_in_the_order_of_the_space(spec):
    axis, at = places(spec, "method.metric.kind", trial(0), trial(1, **{"method.metric.kind": "siamese_negcos"}))
    assert (axis.kind, at, axis.ticks) == ("names", [1, 0], ((0, "siamese_negcos"), (1, "uniform")))


@pytest.mark.parametrize("low, high", [(0.3, 300), (0.2, 0.9), (1e-12, 1e12), (3.1, 3.2), (1e-3, 1e-1)])
def test_log_ticks_are_few_and_within_the_range(low, high):
    ticks = log_ticks(low, high)
    assert 2 <= len(ticks) <= 12
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)
    assert ticks == sorted(ticks)


def test_marks_lie_at_values_and_means_are_of_finished_trials_alone(spec):
    trials = {n: trial(n, state, value) for n, (state, value) in enumerate(
        [("finished", 0.4), ("finished", 0.6), ("stopped", 0.9), ("failed", None)]
    )}  # fmt: skip
    axis = next(axis for axis in axes_of(spec, trials) if axis.path == "method.inner_steps")
    figure = draw_dimension(spec, trials, axis)
    marks = {artist.get_label(): artist.get_offsets().tolist() for artist in figure.axes[0].collections}
    assert marks["finished"] == [[2, 0.4], [2, 0.6]]
    assert marks["stopped early, at its last value"] == [[2, 0.9]]
    assert marks["mean of finished"] == [[2, 0.5]]
    assert marks["best (trial 1)"] == [[2, 0.6]]
    assert marks["start"] == [[2, 0.4]]
    assert marks["failed"] == [[2, 0]]  # on the axis, whatever the values
    assert "split seed 0" in figure.axes[0].get_title()


def test_history_climbs_with_the_best_finished_trial(spec):
    values = [0.5, 0.4, 0.7, 0.6]
    figure = draw_history(spec, {n: trial(n, value=value) for n, value in enumerate(values)})
    (line,) = figure.axes[0].get_lines()
    assert list(line.get_ydata()) == [0.5, 0.5, 0.7, 0.7, 0.7]


def test_the_page_needs_no_network_and_has_readable_ticks(tmp_path: Path, spec):
    trials = {0: trial(0), 1: trial(1, value=0.7, **{"method.reg.coefficient": 30.0})}
    page = write_parallel(tmp_path / "parallel.html", spec, trials, axes_of(spec, trials)).read_text()
    assert len(page) > 1_000_000  # the library is inside
    assert not re.findall(r"<(?:script|link)[^>]+(?:src|href)=", page)
    call = page[page.rindex("Plotly.newPlot(") :]
    data, _ = json.JSONDecoder().raw_decode(call[call.index("[") :])
    dimensions = {item["label"]: item for item in data[0]["dimensions"]}
    assert dimensions["a (log)"]["values"] == pytest.approx([math.log10(3), math.log10(30)])
    assert dimensions["a (log)"]["ticktext"] == ["1", "10", "100"]
    assert dimensions["kind"]["ticktext"] == ["siamese_negcos", "uniform"]
    assert dimensions["val_accuracy"]["values"] == [0.5, 0.7]


def test_results_and_figures_import_nothing_heavy():
    code = "import sys, tuner.results, tuner.figures; print(*{name.split('.')[0] for name in sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "ray", "matplotlib", "pandas", "plotly"} & set(run.stdout.split())
