"""Labels so long, or so many, that whoever asks about the data set or its embeddings would pay for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from service.api.embeddings.schemas import LONGEST_LABEL, MOST_CLASSES
from tests.abuse.attackers import attacked, client, train
from tests.service.api.server import Live
from tests.service.datasets.forms import graph, npz
from trainer.data.sources.labels import MAX_CLASSES, MAX_TEXT

EDGES = "source,target\n0,1\n1,2\n"
LONG = "x" * 100_000


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with attacked(tmp_path_factory.mktemp("home"), rate_burst=100_000) as server:
        yield server


def tables(labels: list[str]) -> dict[str, Any]:
    rows = "".join(f"{row},{label},1\n" for row, label in enumerate(labels))
    return {"nodes": ("n.csv", f"id,label,a\n{rows}"), "edges": ("e.csv", EDGES)}


@pytest.mark.parametrize(
    "files, why",
    [
        (tables(["cat", "x" * (MAX_TEXT + 1), "dog"]), f"more than {MAX_TEXT} characters"),
        (tables(["cat", *(LONG + str(row) for row in range(6))]), f"more than {MAX_TEXT} characters"),
        (tables([f"c{row}" for row in range(MAX_CLASSES + 1)]), f"more than {MAX_CLASSES:,} different classes"),
        (tables([str(row) for row in range(MAX_CLASSES + 1)]), f"more than {MAX_CLASSES:,} different classes"),
        ({"npz": ("g.npz", npz(**graph(y=["cat", "x" * 257, "dog", "cat"])))}, f"more than {MAX_TEXT} characters"),
        ({"npz": ("g.npz", npz(**graph(ids=["p", "q", "r", "x" * 257])))}, f"more than {MAX_TEXT} characters"),
    ],
)
def test_labels_and_ids_beyond_their_bounds_are_refused_by_the_upload(live: Live, files: dict[str, Any], why: str):
    answer = client(live, "submit").post("/v1/datasets", data={"name": "labels"}, files=files)
    assert (answer.status_code, why in answer.json()["detail"]) == (422, True), answer.text[:500]
    assert len(answer.content) < 5_000


def test_labels_within_the_bounds_are_taken(live: Live):
    files = tables(["cat", "x" * MAX_TEXT, *(f"c{row}" for row in range(MAX_CLASSES - 2))])
    answer = client(live, "submit").post("/v1/datasets", data={"name": "labels"}, files=files)
    assert (answer.status_code, answer.json().get("classes")) == (201, MAX_CLASSES), answer.text[:500]


def test_names_of_classes_are_in_the_answer_about_one_version_and_in_no_list(live: Live):
    mine, reader = client(live, "submit"), client(live, "read")
    names = [f"{number:03}" + "y" * 200 for number in range(500)]
    made = train(live, mine, rows=500, labels=list(range(500)), classes=names)
    one, page = reader.get(f"/v1/embeddings/{made.version}"), reader.get("/v1/embeddings")
    assert one.json()["classes"] == names
    assert names[0] not in page.text
    assert [item["rows"] for item in page.json()["items"]] == [500]
    stored = live.store.embeddings.get(made.version)
    assert names[0] not in str(stored), "every process reads the rows of all versions"
    assert names[0] not in str(live.store.embeddings.snapshot())


@pytest.mark.parametrize(
    "labels, field",
    [
        (["cat", "dog", "x" * (MAX_TEXT + 1)], "labels.2"),
        (["x" * 300_000 + str(row) for row in range(25)], "labels.0"),  # 7.5 MB; answers had each of them for every row
        ([1, 2, 10**30], "labels.2"),
        ([f"c{row}" for row in range(MAX_CLASSES + 1)], "labels"),
    ],
)
def test_labels_of_a_question_are_bounded_as_those_of_files(live: Live, labels: list[Any], field: str):
    assert (LONGEST_LABEL, MOST_CLASSES) == (MAX_TEXT, MAX_CLASSES)
    made = train(live, client(live, "submit"), rows=MAX_CLASSES + 1)
    ids = list(range(len(labels)))
    answer = client(live, "read").post(f"/v1/embeddings/{made.version}/classify", json={"ids": ids, "labels": labels})
    assert answer.status_code == 422, answer.text[:500]
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert len(answer.content) < 5_000
