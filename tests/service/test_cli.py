"""The `nml` command as people and scripts use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.service.terminal import shown_on_terminal

TINY = [
    "--set", "data.synthetic.nodes=200", "--set", "encoder.hidden=16", "--set", "encoder.dim=16",
    "--set", "method.metric.hidden=16", "--set", "evaluation.figures=false", "--set", "evaluation.probe_epochs=20",
    "--set", "evaluation.cluster_seeds=1",
]  # fmt: skip


def nml(*arguments, **environment):
    command = [sys.executable, "-c", "from service.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


@pytest.mark.slow
def test_train_then_evaluate_through_the_command_line(tmp_path):
    out = str(tmp_path / "run")
    done = nml(
        "train",
        "--dataset",
        "synthetic",
        "--epochs",
        "3",
        "--out",
        out,
        *TINY,
        "--json",
        NML_HOME=str(tmp_path / "home"),
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["type"] for event in events] == ["start", "epoch", "epoch", "epoch", "result"]
    again = nml("evaluate", out, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["probe"] == events[-1]["metrics"]["eval"]["probe"]
    swapped = json.loads(nml("evaluate", out, "--protocol", "pygcl_swap", "--json").stdout)
    assert swapped["protocol"] != json.loads(again.stdout)["protocol"]
    assert "accuracy" in nml("evaluate", out).stdout


@pytest.mark.slow
def test_own_files_come_back_under_their_own_ids(tmp_path):
    names = [f"p-{number}" for number in range(40, 0, -1)]
    nodes = "\n".join(f"{name},{i % 2},{i % 3},{i % 5}" for i, name in enumerate(names))
    (tmp_path / "nodes.csv").write_text(f"id,label,a,b\n{nodes}\n")
    edges = "\n".join(f"{one},{two}" for one, two in zip(names, names[2:], strict=False))
    (tmp_path / "edges.csv").write_text(f"source,target\n{edges}\n")
    files = [f"--set=data.files.{kind}={tmp_path / kind}.csv" for kind in ("nodes", "edges")]
    options = ["--set", "data.name=files", *files, "--epochs", "2", "--set", "run.track=false", *TINY[2:]]
    done = nml("train", *options, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "embeddings" / "ids.json").read_text()) == names

    with (tmp_path / "edges.csv").open("a") as file:
        file.write("p-1,p-991\n")
    done = nml("train", *options, "--out", str(tmp_path / "other"))
    assert done.returncode == 3
    assert 'edges.csv, row 40: node "p-991" is not in' in done.stderr
    assert "drop_unknown" in done.stderr


def test_threads_sleep_at_barriers_unless_the_user_says_otherwise(monkeypatch):
    from trainer.process.threads import wait_politely

    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    wait_politely()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    wait_politely()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


def test_spec_file_and_overrides_make_the_spec_that_is_shown(tmp_path):
    file = tmp_path / "spec.yaml"
    file.write_text("run: {seed: 7}\n")
    shown = json.loads(nml("train", str(file), "--set", "method.temperature=0.4", "--show-spec").stdout)
    assert (shown["run"]["seed"], shown["method"]["temperature"]) == (7, 0.4)
    preset = json.loads(nml("presets", "nml-official", "--dataset", "photo").stdout)
    assert preset["method"]["inner_steps"] == 5
    file.write_text(json.dumps(preset))
    assert json.loads(nml("train", str(file), "--show-spec").stdout) == preset


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (["train", "--no-such-option"], 2, "--no-such-option"),
        (["frobnicate"], 2, "frobnicate"),
        (["train", "--dataset", "atlantis"], 3, "data.name"),
        (["train", "--preset", "magic"], 3, "nml-official"),
        (["train", "--set", "method.temperature=-1"], 3, "method.temperature"),
        (["train", "--set", "nonsense"], 3, "section.key=value"),
        (["train", "missing.json"], 3, "missing.json"),
        (["evaluate", "nowhere"], 3, "not a run directory"),
        (
            ["train", "--set", "data.name=files", "--set", "data.files.npz=missing.npz", "--out", "{tmp}/x"],
            3,
            "missing.npz",
        ),
    ],
)
def test_mistakes_get_a_sentence_and_the_right_exit_code(tmp_path, arguments, code, says):
    done = nml(*[argument.replace("{tmp}", str(tmp_path)) for argument in arguments])
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_lists_are_complete_and_help_names_the_exit_codes():
    names = {entry["name"] for entry in json.loads(nml("datasets", "--json").stdout)}
    assert {"digits", "synthetic", "cora", "wikics", "physics"} <= names
    assert "digits" in nml("datasets").stdout
    assert "nml-official" in nml("presets").stdout
    assert "6 cancelled" in nml("train", "--help").stdout


def test_a_terminal_sees_a_progress_bar(tmp_path):
    options = ["--epochs", "3", "--out", str(tmp_path / "run"), "--set", "run.track=false", *TINY]
    command = [
        sys.executable,
        "-c",
        "from service.cli import main; main()",
        "train",
        "--dataset",
        "synthetic",
        *options,
    ]
    shown = shown_on_terminal(command)
    assert b"3/3" in shown
    assert b"loss" in shown
