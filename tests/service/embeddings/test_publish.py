"""A version is the export to the bit, or it is not there: whatever is damaged, full, killed or at work beside it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from service.embeddings import publish as publishing
from service.embeddings.layout import ids_file, read_info
from service.embeddings.publish import build_version, inverse_norms
from service.embeddings.table import Table
from tests.service.embeddings.tables import VERSION, make_export, make_ids, publish
from trainer.errors import Infrastructure, InvalidInput, NonFinite

ROOT = Path(__file__).resolve().parents[3]


def names(home: Path) -> list[str]:
    """What is in the folder of versions, hidden or not."""
    return sorted(path.name for path in (home / "embeddings").iterdir())


@pytest.mark.parametrize("ids", ["int", "shuffled", "str"])
def test_a_version_says_what_it_holds_and_takes_no_space_twice(tmp_path, ids):
    run = make_export(tmp_path / "run", 50, 6, ids, labels=3, encoder=b"weights", epoch=7)
    target = publish(run, tmp_path)
    info = read_info(target)
    manifest = json.loads((run / "embeddings" / "manifest.json").read_text())
    assert (info.version, info.rows, info.dim, info.has_encoder) == (VERSION, 50, 6, True)
    assert info.classes == ("class 0", "class 1", "class 2")
    assert info.export == {key: value for key, value in manifest.items() if key not in ("files", "classes")}
    assert {path.name for path in target.iterdir()} == {*info.files, "version.json"}
    assert info.files == {name: hashlib.sha256((target / name).read_bytes()).hexdigest() for name in info.files}
    assert info.bytes == sum((target / name).stat().st_size for name in info.files)
    for name in manifest["files"]:
        assert (target / name).samefile(run / "embeddings" / name)
    assert ids_file(info) in manifest["files"]
    assert names(tmp_path) == [VERSION]
    assert Table.open(target).ids.rows_of(make_ids(50, ids)).tolist() == list(range(50))


def test_what_the_trainer_exports_is_published(tmp_path):
    import torch

    from trainer.data.graph import Graph
    from trainer.export.embeddings import export_embeddings
    from trainer.nn.encoder import Encoder
    from trainer.spec.encoder import EncoderSpec

    names, nodes = ["a", "ü", 'c "c"\n', "", "日本\u2028"], np.arange(5)
    x = np.random.default_rng(0).standard_normal((5, 4))
    graph = Graph.from_edges([nodes, (nodes + 1) % 5], x, ids=names, y=[1, 0, -1, 1, 0], name="ring")
    encoder = Encoder(4, EncoderSpec(hidden=8, dim=6), generator=torch.Generator().manual_seed(0))
    run = tmp_path / "run"
    export_embeddings(run / "embeddings", encoder, graph, graph_sha256=graph.fingerprint(), dataset="ring")
    (run / "spec.json").write_text("{}")
    table = Table.open(publish(run, tmp_path))
    assert np.array_equal(table.take(nodes), np.load(run / "embeddings" / "vectors.npy"))
    assert table.ids.ids_of(nodes) == names
    assert [table.ids.row_of(name) for name in names] == nodes.tolist()
    assert (table.info.classes, table.labels.tolist()) == (("0", "1"), [1, 0, -1, 1, 0])
    assert (table.info.has_encoder, table.info.export["dataset"]) == (True, "ring")


def test_an_export_without_labels_and_encoder_is_published(tmp_path):
    info = read_info(publish(make_export(tmp_path / "run"), tmp_path))
    assert (info.classes, info.has_encoder) == (None, False)


def test_a_version_outlives_its_run_and_what_the_run_writes_later(tmp_path):
    run = make_export(tmp_path / "run", 10, 4)
    target = publish(run, tmp_path)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    (run / "embeddings" / "new.npy").write_bytes(b"another export")
    os.replace(run / "embeddings" / "new.npy", run / "embeddings" / "vectors.npy")  # as the trainer replaces files
    shutil.rmtree(run)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_where_nothing_can_be_linked_files_are_copied(tmp_path, monkeypatch, code):
    def refuse(source, target):
        raise OSError(code, os.strerror(code))

    run = make_export(tmp_path / "run", 10, 4, "str")
    monkeypatch.setattr(publishing.os, "link", refuse)
    target = publish(run, tmp_path)
    assert (target / "vectors.npy").stat().st_nlink == 1
    assert (target / "vectors.npy").read_bytes() == (run / "embeddings" / "vectors.npy").read_bytes()


@pytest.mark.parametrize("name", ["vectors.npy", "ids.json", "labels.npy", "encoder.safetensors"])
@pytest.mark.parametrize("how", ["flip", "cut", "gone"])
def test_a_changed_file_is_refused_and_leaves_nothing(tmp_path, name, how):
    run = make_export(tmp_path / "run", 30, 4, "str", labels=2, encoder=b"weights")
    file = run / "embeddings" / name
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.unlink()
    if how != "gone":
        file.write_bytes(data if how == "flip" else data[:-1])
    with pytest.raises(InvalidInput, match=f"{name}: (differs from the checksum|the run no longer has this file)"):
        publish(run, tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "change, message",
    [
        ({"rows": 31}, r"labels\.npy: holds int32 \[30\], where int32 \[31\]"),
        ({"dim": 5}, r"vectors\.npy: holds"),
        ({"id_type": "int"}, "lacks rows"),
        ({"rows": True}, "lacks rows"),
        ({"files": []}, "lacks rows"),
        ({"files": {"../../etc/passwd": "0"}}, "lacks rows"),
        ({"classes": None}, "lists no classes"),
        ({"classes": ["only one"]}, r"labels\.npy: has numbers"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(tmp_path, change, message):
    run = make_export(tmp_path / "run", 30, 4, "str", labels=2)
    manifest = run / "embeddings" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
    with pytest.raises(InvalidInput, match=message):
        publish(run, tmp_path)
    assert names(tmp_path) == []


def test_an_unfinished_export_is_refused(tmp_path):
    run = make_export(tmp_path / "run")
    (run / "embeddings" / "manifest.json").unlink()
    with pytest.raises(InvalidInput, match="no finished embeddings"):
        publish(run, tmp_path)
    (run / "embeddings" / "manifest.json").write_text("{")
    with pytest.raises(InvalidInput, match="is not JSON"):
        publish(run, tmp_path)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_refused_by_its_row(tmp_path, bad):
    vectors = np.ones((20, 3), np.float32)
    vectors[13, 1] = bad
    with pytest.raises(NonFinite, match="row 13"):
        publish(make_export(tmp_path / "run", vectors=vectors), tmp_path)


def test_norms_of_zero_tiny_and_huge_vectors_are_finite():
    vectors = np.array([[0, 0], [3, 4], [1e-44, 0], [6e17, 6e17], [1e-30, 0], [5e-31, 5e-31]], np.float32)
    expected = [0, 0.2, 0, 1 / (6e17 * np.sqrt(2)), 1e30, 0]
    assert np.allclose(inverse_norms(vectors), expected, rtol=1e-6, atol=0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("long", [2e18, 3e38])
def test_a_vector_too_long_to_be_searched_is_refused_by_its_row(tmp_path, long):
    vectors = np.ones((20, 3), np.float32)
    vectors[13] = long, -long, long
    with pytest.raises(InvalidInput, match=r"row 13: has length"):
        publish(make_export(tmp_path / "run", vectors=vectors), tmp_path)
    assert names(tmp_path) == []


def test_a_version_that_is_there_is_not_made_again(tmp_path):
    run = make_export(tmp_path / "run")
    target = publish(run, tmp_path)
    inode = target.stat().st_ino
    shutil.rmtree(run)
    assert build_version(run / "embeddings", run / "spec.json", target, version=VERSION) == read_info(target)
    assert target.stat().st_ino == inode


@pytest.mark.parametrize("damage", ["no document", "file missing", "a file in its place"])
def test_something_incomplete_in_its_place_is_replaced(tmp_path, damage):
    run = make_export(tmp_path / "run", 9, 2)
    target = publish(run, tmp_path)
    if damage == "a file in its place":
        shutil.rmtree(target)
        target.write_text("?")
    else:
        (target / ("version.json" if damage == "no document" else "inverse_norms.npy")).unlink()
    publish(run, tmp_path)
    assert Table.open(target).vectors.shape == (9, 2)
    assert names(tmp_path) == [VERSION]


def test_a_version_in_a_format_of_another_release_is_left_alone(tmp_path):
    run = make_export(tmp_path / "run", 9, 2)
    target = publish(run, tmp_path)
    document = json.loads((target / "version.json").read_text()) | {"format": 2}
    (target / "version.json").write_text(json.dumps(document))
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    with pytest.raises(Infrastructure, match="format that this release does not know"):
        publish(run, tmp_path)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert names(tmp_path) == [VERSION]


def test_when_another_was_faster_theirs_is_used(tmp_path, monkeypatch):
    run = make_export(tmp_path / "run")
    target, rename = tmp_path / "embeddings" / VERSION, os.rename

    def late(source, destination):
        if not target.exists():
            shutil.copytree(source, tmp_path / "theirs")
            rename(tmp_path / "theirs", target)
            late.inode = target.stat().st_ino
        rename(source, destination)

    monkeypatch.setattr(publishing.os, "rename", late)
    publish(run, tmp_path)
    assert target.stat().st_ino == late.inode
    assert names(tmp_path) == [VERSION]


CHILD = """
import os, sys
from pathlib import Path
from service.embeddings import publish as publishing
{patch}
from tests.service.embeddings.tables import publish
publish(Path(sys.argv[1]) / "run", Path(sys.argv[1]))
"""


def child(home: Path, patch: str, **options) -> subprocess.Popen:
    code = CHILD.format(patch=patch)
    return subprocess.Popen([sys.executable, "-c", code, str(home)], cwd=ROOT, stderr=subprocess.PIPE, **options)


@pytest.mark.parametrize("step", ["_bring", "_write_norms", "write_id_files", "sha256", "as_document", "os.rename"])
def test_killed_at_any_step_it_is_made_anew_the_same(tmp_path, step):
    run = make_export(tmp_path / "run", 40, 3, "str", labels=2)
    patch = f"""
real = publishing.{step}
def dies(*arguments, **options):
    real(*arguments, **options) if {step!r} != "os.rename" else None
    os._exit(9)
publishing.{step} = dies
"""
    process = child(tmp_path, patch)
    assert process.wait(60) == 9, process.stderr.read()
    assert [name.startswith(f".{VERSION}.") for name in names(tmp_path)] == [True]  # a leftover, and no version
    (reference := tmp_path / "reference").mkdir()
    publish(run, reference)
    publish(run, tmp_path)
    assert names(tmp_path) == [VERSION]
    assert {file.name: file.read_bytes() for file in (tmp_path / "embeddings" / VERSION).iterdir()} == {
        file.name: file.read_bytes() for file in (reference / "embeddings" / VERSION).iterdir()
    }


def test_killed_right_after_the_rename_the_version_is_there(tmp_path):
    make_export(tmp_path / "run", 40, 3)
    patch = "real = os.rename\ndef dies(*a):\n    real(*a)\n    os._exit(9)\npublishing.os.rename = dies"
    assert child(tmp_path, patch).wait(60) == 9
    assert names(tmp_path) == [VERSION]
    assert Table.open(tmp_path / "embeddings" / VERSION).vectors.shape == (40, 3)


def test_the_work_of_one_who_is_still_at_it_is_left_alone(tmp_path):
    run = make_export(tmp_path / "run", 40, 3)
    patch = """
real = publishing.write_id_files
def waits(*arguments, **options):
    print("here", flush=True)
    sys.stdin.readline()
    return real(*arguments, **options)
publishing.write_id_files = waits
"""
    process = child(tmp_path, patch, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"here\n"
    publish(run, tmp_path)
    assert len(names(tmp_path)) == 2
    inode = (tmp_path / "embeddings" / VERSION).stat().st_ino
    _, problems = process.communicate(b"\n", timeout=60)
    assert process.returncode == 0, problems
    assert names(tmp_path) == [VERSION]
    assert (tmp_path / "embeddings" / VERSION).stat().st_ino == inode


def test_a_full_disk_says_so_and_leaves_nothing(tmp_path):
    """A limit to the size of files stands for the full disk: the system refuses to write more, in the same call."""
    make_export(tmp_path / "run", 20_000, 2, "str")

    def starve() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    process = child(tmp_path, "", preexec_fn=starve)
    _, problems = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"Infrastructure: the disk is full" in problems
    assert names(tmp_path) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("step", ["trainer.files.whole_directory.sync", "shutil.copyfile"])
def test_a_disk_that_is_full_at_the_end_is_no_version(tmp_path, monkeypatch, code, step):
    def refuse(*arguments):
        raise OSError(code, os.strerror(code))

    run = make_export(tmp_path / "run")
    if step == "shutil.copyfile":
        monkeypatch.setattr(publishing.os, "link", lambda *a: (_ for _ in ()).throw(OSError(errno.EXDEV, "")))
    monkeypatch.setattr(step, refuse)
    with pytest.raises(Infrastructure, match="the disk is full"):
        publish(run, tmp_path)
    assert names(tmp_path) == []


def test_another_failure_of_the_disk_can_be_tried_again(tmp_path, monkeypatch):
    run = make_export(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "sha256", lambda path: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
        with pytest.raises(Infrastructure, match="I/O error"):
            publish(run, tmp_path)
    publish(run, tmp_path)
    assert names(tmp_path) == [VERSION]
