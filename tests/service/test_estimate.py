"""`nml estimate` and `--memory-limit` as people and scripts use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


def nml(*arguments, **environment):
    command = [sys.executable, "-c", "from service.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


def told(*arguments):
    done = nml("estimate", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_table_tells_parts_what_dominates_the_limit_and_the_plan():
    done = nml("estimate", "--dataset", "cora", "--memory-limit", "4GB")
    assert done.returncode == 0, done.stderr
    for words in ("2,708 nodes", "runtime", "contrast", "evaluation", "in all", "most of it for", "limit is 4.0 GB"):
        assert words in done.stdout
    assert "negatives graph, batch all nodes, neighbours all, tile 1024, keep 1024 MB" in done.stdout
    assert "exact contrast" in done.stdout


def test_json_adds_up_and_the_plan_follows_the_limit(tmp_path):
    options = ["--dataset", "synthetic", "--set", "data.synthetic.nodes=40000"]
    rich, poor = (told(*options, "--memory-limit", limit) for limit in ("50GB", "1.5GB"))
    for found in (rich, poor):
        memory = found["memory"]
        assert sum(memory["parts"].values()) >= memory["total"] > memory["parts"]["runtime"]
        assert memory["total"] <= found["limit"]
        assert found["shape"]["nodes"] == 40_000
    assert rich["sampling"]["batch_size"] is None
    assert poor["sampling"]["batch_size"] < 40_000
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps({"data": {"name": "synthetic", "synthetic": {"nodes": 40_000}}}))
    assert told(str(spec), "--memory-limit", "50GB")["memory"] == rich["memory"]


def test_a_graph_that_could_never_be_loaded_here_is_estimated_at_once():
    found = told("--dataset", "synthetic", "--set", "data.synthetic.nodes=100000000", "--memory-limit", "1TB")
    assert found["sampling"]["negatives"] == "batch"
    assert found["memory"]["total"] > 10 * 10**9


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (["estimate", "--dataset", "physics", "--memory-limit", "900MB"], 4, "most for loading"),
        (["estimate", "--memory-limit", "300MB"], 4, "libraries alone"),
        (["estimate", "--memory-limit", "4"], 3, "4GB"),
        (["estimate", "--set", "data.name=files", "--set", "data.files.npz=missing.npz"], 3, "missing.npz"),
        (["estimate", "--set", "data.name=imported", "--set", "data.imported=nowhere"], 3, "nowhere"),
        (["train", "--memory-limit", "lots", "--out", "{tmp}/run"], 3, "4GB"),
        (["train", "--memory-limit", "300MB", "--out", "{tmp}/run"], 4, "libraries alone"),
    ],
)
def test_what_does_not_fit_ends_with_code_4_and_mistakes_with_code_3(tmp_path, arguments, code, says):
    done = nml(*[argument.replace("{tmp}", str(tmp_path)) for argument in arguments], NML_DATA="")
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_estimating_needs_no_torch():
    run = "import sys; from service.cli import app; app(['estimate'], standalone_mode=False)"
    code = f"{run}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.slow
def test_the_limit_given_to_a_run_is_the_one_it_is_planned_with(tmp_path):
    spec = tmp_path / "spec.json"
    spec.write_text(
        json.dumps(
            {
                "data": {"name": "synthetic", "synthetic": {"nodes": 200, "features": 20}},
                "encoder": {"hidden": 8, "dim": 8},
                "method": {"metric": {"hidden": 8}},
                "optimiser": {"epochs": 1},
                "evaluation": {"probe_epochs": 5, "cluster_seeds": 1, "figures": False},
                "run": {"track": False},
            }
        )
    )
    module = [sys.executable, "-m", "trainer", str(spec), "--out", str(tmp_path / "one"), "--memory-limit", "1GB"]
    subprocess.run(module, check=True, capture_output=True)
    done = nml("train", str(spec), "--out", str(tmp_path / "two"), "--memory-limit", "1GiB")
    assert done.returncode == 0, done.stderr
    limits = [json.loads((tmp_path / name / "plan.json").read_text())["limit"] for name in ("one", "two")]
    assert limits == [10**9, 2**30]
    refused = subprocess.run([*module[:-1], "nothing"], capture_output=True, text=True)
    assert refused.returncode == 3
    assert "4GB" in refused.stderr
