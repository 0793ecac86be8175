"""client.vectors against a real server: what is looked up is what was exported, whatever happens on the way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.client import Alias, ApiError, Client, JobFailed, _embeddings
from tests.service.api.server import SMALL, Live
from tests.service.client.proxy import Proxy, proxying
from tests.service.client.published import conclude, nearest, published, trained
from trainer.errors import InvalidInput


@pytest.fixture
def proxy(live: Live) -> Iterator[Proxy]:
    with proxying(live.url) as found:
        yield found


@pytest.mark.parametrize("kind", ["int", "shuffled", "str"])
def test_looked_up_vectors_are_the_exported_ones_to_the_bit(live: Live, client: Client, kind):
    made = published(live, 60, 8, kind)
    rows = [3, 59, 3, 0, 17]
    asked = [made.ids[row] for row in rows]
    found = client.vectors.lookup("latest", [*asked[:2], "nobody", *asked[2:], 10**30])
    assert found.version == made.version
    assert found.unknown == ["nobody", 10**30]
    assert found.vectors.dtype == np.float32
    assert found.vectors[[0, 1, 3, 4, 5]].tobytes() == made.vectors[rows].tobytes()
    assert np.isnan(found.vectors[[2, 6]]).all()
    every = client.vectors.lookup(made.version, np.array(made.ids))
    assert every.vectors.tobytes() == made.vectors.tobytes()
    assert every.unknown == []
    for row in (0, 4, 59):
        assert client.vectors.vector("latest", made.ids[row]).tobytes() == made.vectors[row].tobytes()
        if kind != "str":
            assert client.vectors.vector("latest", str(made.ids[row])).tobytes() == made.vectors[row].tobytes()


def test_ids_of_any_text_find_their_own_vector(live: Live, client: Client):
    ids = ["..", ".", "a/b", "a/../b", "/", "?x=1", "%2e%2e", "#", " ", "ü", "\n", "../../jobs", "nodes", "a;b", "+"]
    made = published(live, len(ids), 4, ids)
    for name, vector in zip(ids, made.vectors, strict=True):
        assert client.vectors.vector("latest", name).tobytes() == vector.tobytes(), name
    with pytest.raises(ApiError) as error:
        client.vectors.vector("latest", "c")
    assert error.value.status == 404


def test_scores_by_examples_of_pairs_and_of_versions(live: Live, client: Client):
    made = published(live, 60, 8, "shuffled", labels=3)
    assert list(client.vectors.ids("latest")) == made.ids
    found = client.vectors.recommend("latest", made.ids[:1], [made.ids[1]], k=4)
    query = made.vectors[0] / np.linalg.norm(made.vectors[0]) - made.vectors[1] / np.linalg.norm(made.vectors[1])
    order, _ = nearest(made.vectors, query[None])
    ranked = [row for row in order[0] if row > 1]
    assert found["ids"] == [made.ids[row] for row in ranked[:4]]
    least = found["scores"][1]
    fewer = client.vectors.recommend("latest", made.ids[:1], [made.ids[1]], k=4, min_score=least, labels=["class 0"])
    assert all(score >= least for score in fewer["scores"])
    near = client.vectors.neighbors("latest", [made.ids[0]], k=9, min_score=0.3)
    whole = client.vectors.neighbors("latest", [made.ids[0]], k=9)
    assert near.ids[0] == [node for node, score in zip(whole.ids[0], whole.scores[0], strict=True) if score >= 0.3]
    pairs = client.vectors.scores("latest", made.ids[:2], [*made.ids[2:5], "nobody"], metric="dot")
    np.testing.assert_allclose(pairs["scores"], made.vectors[:2] @ made.vectors[2:5].T, rtol=1e-5, atol=1e-6)
    assert pairs["unknown"] == ["nobody"]
    same = client.vectors.compare("latest", made.version, k=5, sample=30)
    assert (same["mean_overlap"], len(same["ids"])) == (1.0, 30)
    assert same["mean_drift"] == pytest.approx(0.0, abs=1e-9)


def test_neighbours_of_unknown_nodes_are_none_with_or_without_vectors(live: Live, client: Client):
    published(live, 20, 4)
    found = client.vectors.neighbors("latest", ["nobody"], include_vectors=True)
    assert (found.queries, found.ids, found.vectors, found.unknown) == ([], [], [], ["nobody"])
    assert client.vectors.neighbors("latest", ["nobody"]).vectors is None


@pytest.mark.parametrize("wrong", ["42", [True], [1.5], [None], [[1]], np.array([0.5])])
def test_what_is_no_list_of_ids_is_refused_before_it_is_sent(client: Client, wrong):
    with pytest.raises(InvalidInput, match="id"):
        client.vectors.lookup("latest", wrong)
    with pytest.raises(InvalidInput, match="id"):
        client.vectors.neighbors("latest", wrong)


def test_a_lookup_in_parts_is_of_one_version(live: Live, proxy: Proxy, monkeypatch):
    monkeypatch.setattr(_embeddings, "LOOKUP_IDS", 40)
    monkeypatch.setattr(_embeddings, "QUERIES", 40)
    made = published(live, 100, 8)
    with Client(proxy.url, key="") as client:
        assert client.vectors.lookup("latest", made.ids).vectors.tobytes() == made.vectors.tobytes()
        by_id = client.vectors.neighbors("latest", made.ids, k=3, include_self=True)
        by_vector = client.vectors.neighbors("latest", vectors=made.vectors, k=3)
    assert by_id.queries == made.ids == by_vector.queries
    assert by_id.ids == by_vector.ids
    for kind in ("lookup", "neighbors"):
        paths = [line.split(" ")[1].partition("?")[0] for line in proxy.requests if kind in line]
        assert paths[0] == f"/v1/embeddings/latest/{kind}"
        assert paths[1] == paths[2] == f"/v1/embeddings/{made.version}/{kind}"


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_neighbours_are_those_of_brute_force(live: Live, client: Client, metric):
    made = published(live, 80, 8, "str")
    order, scores = nearest(made.vectors, made.vectors, metric)
    rows = [5, 41]
    found = client.vectors.neighbors(
        "latest", [made.ids[row] for row in rows] + ["nobody"], k=6, metric=metric, include_vectors=True
    )
    assert (found.version, found.metric, found.backend, found.unknown) == (made.version, metric, "exact", ["nobody"])
    assert found.queries == [made.ids[row] for row in rows]
    assert found.vectors is not None
    for at, row in enumerate(rows):
        others = order[row] != row
        expected = order[row][others][:6]
        assert found.ids[at] == [made.ids[other] for other in expected]
        np.testing.assert_allclose(found.scores[at], scores[row][others][:6], rtol=1e-6)
        assert found.vectors[at].tobytes() == made.vectors[expected].tobytes()
    by_vector = client.vectors.neighbors("latest", vectors=made.vectors[rows], k=6, metric=metric)
    assert by_vector.queries == [0, 1]
    assert by_vector.ids == [[made.ids[other] for other in order[row][:6]] for row in rows]
    assert client.vectors.neighbors("latest", vectors=made.vectors[5].tolist(), metric=metric, k=6).ids == [
        by_vector.ids[0]
    ]


def test_neighbours_can_be_looked_for_among_some(live: Live, client: Client):
    labels = [row % 3 for row in range(60)]
    made = published(live, 60, 8, labels=labels)
    order, _ = nearest(made.vectors, made.vectors)
    by_label = client.vectors.neighbors("latest", [7], k=5, labels=["class 2"])
    assert by_label.ids == [[row for row in order[7] if labels[row] == 2 and row != 7][:5]]
    some = [3, 9, 21, 40, "no"]
    query = made.vectors[7] + 0.1
    order, _ = nearest(made.vectors, query[None])
    among = client.vectors.neighbors("latest", vectors=query, k=10, among=some)
    assert among.ids == [[row for row in order[0] if row in some]]
    assert among.unknown_in_filter == ["no"]
    with pytest.raises(ApiError, match="class 0"):
        client.vectors.neighbors("latest", [7], labels=["class 9"])


@pytest.mark.parametrize(
    "options, says",
    [
        ({}, "either ids or vectors"),
        ({"ids": [1], "vectors": [[0.0]]}, "either ids or vectors"),
        ({"ids": [1], "labels": ["a"], "among": [1]}, "not both"),
        ({"vectors": np.zeros((2, 2, 2))}, "shape"),
        ({"vectors": [["a"]]}, "numbers"),
        ({"vectors": [[1.0, 2.0], [1.0]]}, "numbers"),
    ],
)
def test_impossible_questions_are_refused_here(client: Client, options, says):
    with pytest.raises(InvalidInput, match=says):
        client.vectors.neighbors("latest", **options)


def test_refusals_of_the_service_name_the_field(live: Live, client: Client):
    published(live, 20, 4)
    for options, status, says in (
        ({"vectors": [[1.0, 2.0]]}, 422, "4"), ({"vectors": [[np.nan] * 4]}, 422, "vectors.0"),
        ({"vectors": np.zeros((1, 4))}, 422, "vectors.0"), ({"ids": [1], "k": 0}, 422, "k"),
        ({"ids": [1], "backend": "hnsw"}, 422, "hnsw"), ({"ids": []}, 422, "ids"),
    ):  # fmt: skip
        with pytest.raises(ApiError, match=says) as error:
            client.vectors.neighbors("latest", **options)  # type: ignore[arg-type]
        assert error.value.status == status
    with pytest.raises(ApiError) as error:
        client.vectors.lookup("nothing", [1])
    assert (error.value.status, error.value.exit_code) == (404, 3)


def test_versions_are_listed_newest_first_and_told_in_full(live: Live, client: Client):
    made = [published(live, 10 + number, 4, labels=2) for number in range(3)]
    waiting = trained(live, 5, 4)
    found = list(client.vectors.list())
    assert [version.version for version in found] == [waiting.version, *(one.version for one in made[::-1])]
    assert [version.rows for version in found] == [None, 12, 11, 10]
    assert [version.version for version in client.vectors.list("synthetic", limit=1)] == [waiting.version]
    assert list(client.vectors.list("digits")) == []
    latest = client.vectors.get("latest")
    assert replace(found[1], classes=latest.classes) == latest  # a list leaves them out
    assert (latest.state, latest.dim, latest.id_type, latest.name) == ("ready", 4, "int", "of a test")
    assert set(latest.aliases) == {"latest", "latest.synthetic"}
    assert latest.classes == ("class 0", "class 1")
    assert latest.metrics["eval"]["probe"]["test"] == 0.9312
    client.vectors.delete(made[2].version)
    assert client.vectors.get("latest").version == made[1].version
    with pytest.raises(ApiError) as error:
        client.vectors.get(made[2].version)
    assert error.value.status == 404


@pytest.mark.parametrize("name", ["", "..", "a/b", "../v1/jobs", "a?b", "a b", "%2e%2e"])
def test_names_of_versions_and_aliases_cannot_lead_elsewhere(client: Client, name, tmp_path: Path):
    vectors = client.vectors
    for call in (
        vectors.get, vectors.publish, vectors.delete, vectors.build_index, vectors.alias, vectors.remove_alias,
        vectors.rollback_alias, lambda name: vectors.lookup(name, [1]), lambda name: vectors.vector(name, 1),
        lambda name: vectors.download(name, tmp_path / "a"), lambda name: vectors.set_alias(name, "a"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput):
            call(name)


def test_waiting_goes_from_the_queue_to_the_published_version(live: Live, client: Client):
    job, found = client.submit(SMALL), []
    thread = threading.Thread(target=lambda: found.append(client.vectors.wait(job, timeout=60)))
    thread.start()
    made = trained(live, 7, 4, job_id=job.id)
    conclude(live, made.version)
    thread.join(60)
    assert [(version.version, version.state, version.rows) for version in found] == [(job.id, "ready", 7)]


def test_waiting_for_what_will_never_come_says_why(live: Live, client: Client):
    job = client.submit(SMALL)
    with pytest.raises(TimeoutError, match=job.id):
        client.vectors.wait(job, timeout=0.05)
    live.finish(live.claim(job.id), "failed", failure_kind="oom", failure_message="too large")
    with pytest.raises(JobFailed, match="too large") as failed:
        client.vectors.wait(job)
    assert failed.value.exit_code == 4
    made = trained(live, 5, 4)
    conclude(live, made.version, failure="vectors.npy differs from its checksum")
    with pytest.raises(JobFailed, match="checksum"):
        client.vectors.wait(made.version)
    without = client.submit(SMALL)
    live.finish(live.claim(without.id))
    for name in (without, "01nothing"):
        with pytest.raises(ApiError) as error:
            client.vectors.wait(name)
        assert error.value.status == 404


def test_a_failed_version_is_published_again_on_request(live: Live, client: Client):
    made = trained(live, 5, 4)
    conclude(live, made.version, failure="no space left")
    assert client.vectors.get(made.version).failure == "no space left"
    assert client.vectors.publish(made.version).state == "publishing"
    assert client.vectors.publish(made.version).state == "publishing"  # twice is once
    conclude(live, made.version)
    assert client.vectors.wait(made.version).state == "ready"
    with pytest.raises(ApiError) as error:
        client.vectors.publish(client.submit(SMALL))
    assert error.value.status == 409


def test_an_index_is_asked_for_by_alias_and_once(live: Live, client: Client):
    made = published(live, 50, 4)
    first = client.vectors.build_index("latest")
    assert first.version == made.version
    assert first.indexes["hnsw"]["state"] == "building"
    assert client.vectors.build_index(made.version, "hnsw").indexes == first.indexes


def test_aliases_move_and_roll_back_and_leave_a_history(live: Live, client: Client):
    one, two, three = (published(live, 5, 4).version for _ in range(3))
    vectors = client.vectors
    assert vectors.set_alias("production", one, expected="").version == one
    assert vectors.set_alias("production", two, expected=one).version == two
    assert vectors.set_alias("production", two).seq == 2
    with pytest.raises(ApiError) as error:
        vectors.set_alias("production", three, expected=one)
    assert error.value.status == 409
    assert vectors.set_alias("production", three).version == three
    assert vectors.rollback_alias("production").version == two
    assert vectors.rollback_alias("production").version == one
    with pytest.raises(ApiError) as error:
        vectors.rollback_alias("production")
    assert error.value.status == 409
    found = vectors.alias("production")
    assert [move["version"] for move in found.history] == [one, two, three, two, one]
    assert [move["reason"] for move in found.history] == ["rollback", "rollback", "set", "set", "set"]
    assert {alias.name: alias.version for alias in vectors.aliases()} == {
        "production": one, "latest": three, "latest.synthetic": three
    }  # fmt: skip
    with pytest.raises(ApiError):
        vectors.delete(one)
    vectors.remove_alias("production")
    vectors.delete(one)
    with pytest.raises(ApiError):
        vectors.set_alias("latest", two)


def test_of_two_who_make_the_same_move_only_one_has_made_it(live: Live, client: Client):
    one, two = (published(live, 5, 4).version for _ in range(2))
    client.vectors.set_alias("production", one, expected="")
    for expected in ("", two):
        with pytest.raises(ApiError) as error:
            client.vectors.set_alias("production", one, expected=expected)
        assert error.value.status == 409
    assert client.vectors.alias("production").seq == 1


def test_somebody_elses_roll_back_is_not_taken_for_ones_own(live: Live, client: Client, monkeypatch):
    one, two = (published(live, 5, 4).version for _ in range(2))
    for version in (one, two):
        client.vectors.set_alias("production", version)
    look, looks = client.vectors.alias, []

    def look_and_be_overtaken(name: str) -> Alias:
        looks.append(found := look(name))
        if len(looks) == 1:
            with Client(live.url, key="") as other:
                other.vectors.rollback_alias(name)
        return found

    monkeypatch.setattr(client.vectors, "alias", look_and_be_overtaken)
    with pytest.raises(ApiError) as error:
        client.vectors.rollback_alias("production")
    assert error.value.status == 409
    assert (look("production").version, look("production").seq) == (one, 3)


def test_a_move_whose_answer_was_lost_is_made_once(live: Live, client: Client, proxy: Proxy):
    one, two = (published(live, 5, 4).version for _ in range(2))
    client.vectors.set_alias("production", one)
    for move, version, seq in (
        (lambda shaken: shaken.set_alias("production", two, expected=one), two, 2),
        (lambda shaken: shaken.rollback_alias("production"), one, 3),
    ):
        with Client(proxy.url, key="", patience=20) as shaken:
            proxy.lost.append("PUT")
            found = move(shaken.vectors)
        assert proxy.lost == []
        assert (found.version, found.seq) == (version, seq)
        assert client.vectors.alias("production").seq == seq
