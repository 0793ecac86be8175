"""embeddings, lookup, neighbors, export, alias, publish and index against a real API."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import httpx
import numpy as np
import pandas
import pytest

from service.client import _session
from service.client._embedding_documents import classified_from
from service.client._embeddings import Embeddings
from tests.service.api.server import Live
from tests.service.cli.commands import NML, nml
from tests.service.client.clock import Clock
from tests.service.client.published import conclude, nearest, published, trained
from tests.service.terminal import shown_on_terminal
from tests.trainer.tracking.mlflow_server import free_port


def test_versions_are_listed_with_what_matters_and_told_in_full(live: Live):
    assert "no such embeddings" in nml("embeddings").stderr
    made = published(live, 1_200, 8, labels=2)
    waiting = trained(live, 5, 4)
    lines = nml("embeddings").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [waiting.version, made.version]
    assert re.search(r"latest, latest\.synthetic +synthetic +1,200 × 8 +ready +accuracy 93\.12 % +–", lines[2])
    assert " publishing " in lines[1]
    told = nml("embeddings", "latest").stdout
    for fact in (made.version, "of a test", "1,200 × 8", "whole numbers", "class 0, class 1", "/lookup"):
        assert fact in told
    listed = json.loads(nml("embeddings", "--json", "--dataset", "synthetic", "--limit", "1").stdout)
    assert [document["version"] for document in listed] == [waiting.version]
    assert json.loads(nml("embeddings", "latest", "--json").stdout)["rows"] == 1_200
    assert nml("embeddings", "--dataset", "digits").stdout == ""


def test_lookup_prints_or_writes_the_exported_vectors(live: Live, tmp_path: Path):
    made = published(live, 50, 8)
    shown = nml("lookup", "--node", "42", "--node", "7")
    rows = re.findall(r"^ *(\d+) +(\S+) +(\S+) ", shown.stdout, re.MULTILINE)
    assert [(node, length, first) for node, length, first in rows] == [
        (str(node), f"{np.linalg.norm(made.vectors[node]):.4f}", f"{made.vectors[node, 0]:+.4f}") for node in (42, 7)
    ]
    assert made.version in shown.stderr
    out = tmp_path / "some.npy"
    assert nml("lookup", "--node", "42", "--node", "7", "--of", made.version, "--out", str(out)).stdout == ""
    assert np.array_equal(np.load(out), made.vectors[[42, 7]])
    document = json.loads(nml("lookup", "--node", "3", "--json").stdout)
    assert (document["version"], document["ids"], document["unknown"]) == (made.version, ["3"], [])
    assert np.array_equal(np.array(document["vectors"], np.float32), made.vectors[[3]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "some.npy"]


def test_unknown_nodes_are_named_after_the_known_ones_are_told(live: Live, tmp_path: Path):
    published(live, 50, 8)
    done = nml("lookup", "--node", "42", "--node", "p-991", code=3)
    assert "42" in done.stdout
    assert "has no node p-991" in done.stderr
    nml("lookup", "--node", "p-991", "--node", "1", "--out", str(tmp_path / "x.npy"), code=3)
    assert not (tmp_path / "x.npy").exists()
    done = nml("neighbors", "--node", "p-991", "--node", "1", "-k", "2", code=3)
    assert len(done.stdout.splitlines()) == 3
    assert "has no node p-991" in done.stderr


def test_neighbours_are_a_table_of_rank_id_and_score(live: Live):
    labels = [row % 2 for row in range(50)]
    made = published(live, 50, 8, labels=labels)
    for metric in ("cosine", "dot"):
        order, scores = nearest(made.vectors, made.vectors, metric)
        shown = nml("neighbors", "--node", "42", "--node", "7", "-k", "3", "--metric", metric).stdout
        expected = []
        for node in (42, 7):
            others = order[node] != node
            found = zip(order[node][others][:3], scores[node][others][:3], strict=True)
            expected += [[str(node), str(rank), str(at), f"{score:.6f}"] for rank, (at, score) in enumerate(found, 1)]
        got = [line.split() for line in shown.splitlines()[1:]]
        assert [row[:3] for row in got] == [row[:3] for row in expected]
        assert [float(row[3]) for row in got] == pytest.approx([float(row[3]) for row in expected], abs=2e-6)
    order, _ = nearest(made.vectors, made.vectors)
    document = json.loads(nml("neighbors", "--node", "42", "--label", "class 1", "--backend", "exact", "--json").stdout)
    assert document["results"][0]["ids"] == [row for row in order[42] if labels[row] == 1][:10]


def test_export_writes_whole_tables_with_a_bar_for_people_alone(live: Live, tmp_path: Path):
    import pyarrow.parquet

    made = published(live, 300, 8, "str")
    place = tmp_path / "files"
    place.mkdir()
    done = nml("export", "--out", str(place / "v.npy"))
    assert done.stdout == ""
    assert "300 × 8" in done.stderr
    assert "downloading" not in done.stderr
    assert np.array_equal(np.load(place / "v.npy"), made.vectors)
    nml("export", "latest", "--out", str(place / "t.parquet"))
    assert pyarrow.parquet.read_table(place / "t.parquet")["id"].to_pylist() == made.ids
    nml("export", made.version, "--out", str(place / "ids.json"), "--format", "ids")
    assert json.loads((place / "ids.json").read_text("utf-8")) == made.ids
    assert sorted(path.name for path in place.iterdir()) == ["ids.json", "t.parquet", "v.npy"]
    shown = shown_on_terminal([*NML, "export", "--out", str(place / "v.npy")])
    assert b"downloading" in shown


def test_neighbors_of_all_nodes_are_written_to_a_file(live: Live, tmp_path: Path):
    made = published(live, 60, 8, "str")
    out = tmp_path / "near.csv"
    assert "60 nodes" in nml("neighbors", "--all", "-k", "3", "--out", str(out)).stderr
    table = pandas.read_csv(out)
    assert table["node"].tolist() == [node for node in made.ids for _ in range(3)]
    assert table["rank"].tolist() == [1, 2, 3] * 60
    asked = json.loads(nml("neighbors", "--node", made.ids[7], "-k", "3", "--json").stdout)["results"][0]
    mine = table[table["node"] == made.ids[7]]
    assert (mine["id"].tolist(), mine["score"].tolist()) == (asked["ids"], pytest.approx(asked["scores"], abs=1e-6))
    for options in ([], ["--all"], ["--node", "1", "--out", str(out)], ["--all", "--out", "near.xlsx"]):
        assert "csv" in nml("neighbors", *options, code=3).stderr


@pytest.mark.parametrize("kind", ["int", "str"])
def test_export_writes_what_the_name_says_or_refuses(live: Live, tmp_path: Path, kind: str):
    made = published(live, 300, 8, kind)
    place = tmp_path / "files"
    place.mkdir()
    nml("export", "--out", str(place / "v.csv"))
    table = pandas.read_csv(place / "v.csv")
    assert table["id"].tolist() == list(made.ids)
    vectors = table[[f"v{j}" for j in range(8)]].to_numpy(np.float32)
    assert np.array_equal(vectors, made.vectors)  # digits enough to be read back exactly
    nml("export", "--out", str(place / "v.npz"))
    with np.load(place / "v.npz") as arrays:
        assert arrays["ids"].tolist() == list(made.ids)
        assert np.array_equal(arrays["vectors"], made.vectors)
    assert "end its name in .npy" in nml("export", "--out", str(place / "v.xlsx"), code=3).stderr
    assert "its name says csv" in nml("export", "--out", str(place / "w.csv"), "--format", "npy", code=3).stderr
    assert sorted(path.name for path in place.iterdir()) == ["v.csv", "v.npz"]


def test_an_export_that_fills_the_disk_says_so_and_goes_on_when_there_is_room(live: Live, tmp_path: Path):
    made = published(live, 5_000, 64)  # 1.28 MB
    target = tmp_path / "v.npy"
    limited = ["sh", "-c", 'ulimit -f 400 && exec "$@"', "sh"]  # blocks of 512 or 1,024 bytes
    done = subprocess.run([*limited, *NML, "export", "--out", str(target)], capture_output=True, text=True)
    assert done.returncode == 5, done.stderr
    assert re.fullmatch(r"infra: .*v\.npy\.part: File too large\. Free some space .*\n", done.stderr)
    assert not target.exists()
    have = (tmp_path / "v.npy.part").stat().st_size
    assert 200_000 <= have <= 410_000
    nml("export", "--out", str(target))
    assert np.array_equal(np.load(target), made.vectors)


def test_aliases_are_set_listed_rolled_back_and_removed(live: Live):
    one, two = (published(live, 5, 4).version for _ in range(2))
    assert nml("alias", "production", one).stdout.strip() == one
    assert nml("alias", "production", "latest").stdout.strip() == two
    assert nml("lookup", "--node", "1", "--of", "production").stderr.startswith(f"Version {two}")
    assert nml("alias", "production", "--rollback").stdout.strip() == one
    history = [line.split()[:3] for line in nml("alias", "production", "--history").stdout.splitlines()[1:]]
    assert history == [["3", one, "rollback"], ["2", two, "set"], ["1", one, "set"]]
    listed = {line.split()[0]: line.split()[1:3] for line in nml("alias").stdout.splitlines()[1:]}
    assert listed == {"latest": [two, "itself"], "latest.synthetic": [two, "itself"], "production": [one, "hand"]}
    assert json.loads(nml("alias", "production", "--json").stdout)["seq"] == 3
    assert "points" in nml("unpublish", one, code=3).stderr
    nml("alias", "production", "--remove")
    assert "removed" in nml("unpublish", one).stderr
    assert [document["version"] for document in json.loads(nml("embeddings", "--json").stdout)] == [two]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_predicted_labels_are_written_whatever_is_printed(tmp_path: Path, monkeypatch, form):
    page = {
        "version": "v", "classes": ["a", "b"], "accuracy": None, "protocol": "a probe", "ids": [7, "p,1"],
        "labels": ["a", "b"], "confidence": [0.75, 1.0],
    }  # fmt: skip
    monkeypatch.setattr(Embeddings, "classify", lambda *_, **__: classified_from([page]))
    (tmp_path / "some.csv").write_text("id,label\n1,a\n2,b\n")
    out = tmp_path / "all.csv"
    done = nml("classify", "--labels", str(tmp_path / "some.csv"), "--out", str(out), *form)
    assert out.read_text() == 'id,label,confidence\n7,a,0.75\n"p,1",b,1\n'
    assert (json.loads(done.stdout) == page) if form else (done.stdout == "")


def test_a_busy_service_is_waited_for_but_an_absent_one_is_named_soon(live: Live, monkeypatch):
    clock, answered = Clock(), list[int]()
    monkeypatch.setattr(_session, "time", clock)

    def first_busy(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        answered.append(503 if not answered else 200)
        return httpx.Response(answered[-1], headers={"Retry-After": "10"}, json={"items": [], "next": None})

    with monkeypatch.context() as patched:
        patched.setattr(httpx.HTTPTransport, "handle_request", first_busy)
        assert "Trying again for up to 15 s" in nml("alias").stderr
    assert (answered, clock.now) == ([503, 200], 10)
    clock.now = 0.0
    told = nml("alias", "--url", f"http://127.0.0.1:{free_port()}", code=5).stderr
    assert "Trying again for up to 5 s" in told
    assert 2 < clock.now <= 5


def test_publish_and_index_say_what_they_began(live: Live):
    made = trained(live, 5, 4)
    conclude(live, made.version, failure="no space left")
    assert "no space left" in nml("embeddings", made.version).stdout
    done = nml("publish", made.version)
    assert done.stdout.strip() == made.version
    assert "publishing" in done.stderr
    conclude(live, made.version)
    assert "ready" in nml("publish", made.version, "--wait").stderr
    assert "Index ivf" in nml("index", "latest", "--kind", "ivf").stderr
    assert "ivf building" in nml("embeddings").stdout


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (["embeddings", "nothing"], 3, "no version and no alias"),
        (["embeddings", "a/b"], 3, "a/b"),
        (["lookup"], 2, "--node"),
        (["lookup", "--node", "1", "--of", "nothing"], 3, "no version and no alias"),
        (["lookup", "--node", "1", "--out", "/nowhere/x.npy"], 3, "/nowhere/x.npy"),
        (["neighbors", "--node", "1", "-k", "0"], 2, "-k"),
        (["neighbors", "--node", "1", "--metric", "l2"], 2, "--metric"),
        (["neighbors", "--node", "1", "--label", "x"], 3, "label"),
        (["neighbors", "--node", "1", "--backend", "hnsw"], 3, "hnsw"),
        (["export"], 2, "--out"),
        (["export", "--out", "/nowhere/v.npy"], 3, "/nowhere/v.npy"),
        (["alias", "production"], 3, "no alias of this name"),
        (["alias", "production", "01nothing"], 3, "no version"),
        (["alias", "Production", "latest"], 3, "alias: should be 1 to 64"),
        (["alias", "latest", "latest"], 3, "latest"),
        (["alias", "production", "latest", "--rollback"], 3, "one of"),
        (["alias", "--remove"], 3, "name the alias"),
        (["alias", "production", "--expected", "x"], 3, "VERSION"),
        (["publish", "01nothing"], 3, "no training job"),
        (["index", "--kind", "flat"], 2, "--kind"),
        (["embed", "--nodes", "missing.json"], 3, "missing.json"),
        (["classify", "--labels", "missing.csv"], 3, "missing.csv"),
    ],
)
def test_mistakes_get_a_sentence_and_the_right_exit_code(live: Live, arguments, code, says):
    published(live, 20, 4)
    told = nml(*arguments, code=code).stderr
    assert says in told
    assert "Traceback" not in told
