"""CSV files with rows that nobody's graph has: each is refused once, with a reason, under the limits of a real job."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.datasets.checks import check_parts
from service.datasets.identity import StoredPart
from service.dispatch.shim import data_limit
from service.store.records import Job
from tests.abuse.attackers import attacked, client
from tests.faults.services import wait_for
from tests.service.api.server import Live
from trainer.data.sources import table_lines
from trainer.data.sources.table_file import MAX_COLUMNS, TableFile
from trainer.data.sources.table_lines import HEADER_CHARACTERS
from trainer.errors import InvalidInput

MILLION = 1_000_000
WIDE = 65_000
EDGES = "source,target\n0,1\n"
READ = """
import sys
from pathlib import Path
from trainer.data.importing.blocks import blocks
from trainer.data.sources import table_file
from trainer.data.sources.table_file import TableFile
from trainer.errors import InvalidInput
try:
    table = TableFile.open(Path("nodes.csv"), "nodes")
    numbers = list(table.columns[1:])
    read = blocks(table, text=["id"], numbers=numbers, block_bytes=8 << 20, scratch=Path(), tell=print)
    print(sum(block.rows for block in read))
except InvalidInput as error:
    sys.exit(str(error))
"""


def names(count: int) -> str:
    return "id" + "".join(f",x{number}" for number in range(count)) + "\n"


def row(name: str, count: int) -> str:
    return name + ",1" * count + "\n"


def read(folder: Path, nodes: str) -> subprocess.CompletedProcess[str]:
    """Read the table with the memory that an upload's job has (service.dispatch.shim)."""
    path = folder / "nodes.csv"
    path.write_text(nodes)
    part = StoredPart("nodes", path.name, "", path.stat().st_size)
    limit = data_limit(check_parts([part], folder, memory=8 << 30), 1)

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    command = [sys.executable, "-c", READ]
    return subprocess.run(command, cwd=folder, preexec_fn=bound, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with attacked(tmp_path_factory.mktemp("home")) as server:
        yield server


@pytest.mark.parametrize(
    "nodes, edges, why",
    [
        (names(MILLION) + row("0", MILLION), EDGES, "1,000,001 columns"),
        ("id" + "," * MILLION + "\n", EDGES, "1,000,001 columns"),
        ("id,a\n0,1\n" + row("1", MILLION), EDGES, "row 3: 1000001 values for 2 columns"),
        ("id,a\n0,1\n1,2\n", "source,target\n" + row("0", MILLION), "row 2: 1000001 values for 2 columns"),
        ("id,a\n0,1\n1,2\n", "source,target" + ",x" * 5 * MILLION + "\n0,1\n", "8,388,608 characters"),
        ("id," + "x" * 9 * MILLION + "\n0,1\n", EDGES, "8,388,608 characters"),
        ("id,a\n0," + "1" * 40 * MILLION + "\n", EDGES, "more than 16 MB"),
    ],
    ids=["columns", "no names", "row", "edges", "header", "name", "value"],
)
def test_the_upload_says_why_and_is_not_tried_again(live: Live, nodes: str, edges: str, why: str) -> None:
    caller = client(live, "submit")
    files = {"nodes": ("n.csv", nodes), "edges": ("e.csv", edges)}
    answer = caller.post("/v1/datasets", data={"name": "wide"}, files=files)
    assert (answer.status_code, why in answer.json()["detail"]) == (422, True), answer.text[:500]
    wait_for(
        lambda: newest_import(live).state != "running", 60
    )  # the answer may come a moment before its end is stored
    job = newest_import(live)
    assert (job.state, job.failure_kind, job.attempt) == ("failed", "invalid", 1)


def newest_import(live: Live) -> Job:
    return live.store.jobs.list(kind="import")[0][0]


@pytest.mark.parametrize(
    "rows, why",
    [
        ([row(str(number), WIDE) for number in range(20)], None),
        ([row("0", WIDE), "1,1\n"], f"nodes.csv, row 3: 2 values for {WIDE + 1} columns"),
        ([row("0", WIDE), row("1", WIDE - 1)[:-1] + ",z\n"], f'nodes.csv, row 3: column "x{WIDE - 1}" holds "z"'),
    ],
    ids=["right", "ragged", "text"],
)
def test_a_table_as_wide_as_allowed_is_read_or_refused_in_the_memory_of_its_job(
    tmp_path: Path, rows: list[str], why: str | None
) -> None:
    done = read(tmp_path, names(WIDE) + "".join(rows))
    if why is None:
        assert (done.returncode, done.stdout.split()[-1:]) == (0, [str(len(rows))]), done.stderr[-500:]
    else:
        assert (done.returncode, done.stderr[: len(why)]) == (1, why), done.stderr[-500:]


def test_a_first_row_is_read_only_as_far_as_it_may_go(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    with path.open("wb") as file:
        file.write(b"id")
        file.truncate(50 * HEADER_CHARACTERS)  # a hole: no line ends
    done = subprocess.run(
        [sys.executable, "-c", READ], cwd=tmp_path, capture_output=True, text=True, timeout=100,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (400 << 20, 400 << 20)),
    )  # fmt: skip
    assert (done.returncode, "8,388,608 characters" in done.stderr) == (1, True), done.stderr[-500:]


def test_blank_lines_before_the_first_row_are_no_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_lines, "HEADER_CHARACTERS", 1_000)
    path = tmp_path / "nodes.csv"
    path.write_bytes(b"\r\n" * 1_000 + b"id,a\r\n0,1\r\n")
    assert TableFile.open(path, "nodes").columns == ("id", "a")


def test_the_widest_table_with_long_names_is_within_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("id," + ",".join(f"{number:0120}" for number in range(MAX_COLUMNS - 1)) + "\n")
    assert len(TableFile.open(path, "nodes").columns) == MAX_COLUMNS
    path.write_text("id," + ",".join(f"{number:0160}" for number in range(MAX_COLUMNS - 1)) + "\n")
    with pytest.raises(InvalidInput, match="row 1: has more than"):
        TableFile.open(path, "nodes")
