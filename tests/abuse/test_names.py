"""A stranger with an ordinary key trains on another's data set, and must not speak for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.store import aliases
from tests.abuse.attackers import attacked, client, train, upload
from tests.service.api.server import Live
from tests.service.client.published import conclude


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with attacked(tmp_path / "home") as server:
        yield server


def test_a_stranger_s_job_does_not_move_the_name_of_another_s_data_set(live: Live):
    owner, stranger, admin = (client(live, scope) for scope in ("submit", "submit", "admin"))
    upload(owner, "papers")
    mine = train(live, owner, "papers", dim=8)
    theirs = train(live, stranger, "papers", dim=1)

    def follows() -> str:
        return str(owner.get("/v1/embeddings/latest.papers").json()["version"])

    assert follows() == mine.version
    assert owner.get(f"/v1/embeddings/{theirs.version}").json()["aliases"] == ["latest"], "it is published all the same"
    newer = train(live, owner, "papers")
    assert follows() == newer.version
    of_admin = train(live, admin, "papers")
    assert follows() == of_admin.version
    for caller, gone in ((admin, of_admin), (owner, newer), (owner, mine)):
        assert caller.delete(f"/v1/embeddings/{gone.version}").status_code == 204
    assert owner.get("/v1/embeddings/latest.papers").status_code == 404, "nor does it fall back to a stranger's"


def test_a_stranger_does_not_take_the_name_of_a_data_set_that_was_just_deleted(live: Live):
    owner, stranger = client(live, "submit"), client(live, "submit")
    ref = upload(owner, "papers")
    mine = train(live, owner, "papers")
    theirs = train(live, stranger, "papers", publish=False)
    assert owner.delete(f"/v1/datasets/{ref}").status_code == 204
    conclude(live, theirs.version)
    assert owner.get("/v1/embeddings/latest.papers").json()["version"] == mine.version


def test_names_of_data_sets_that_nobody_uploaded_follow_everyone(live: Live):
    one, other = client(live, "submit"), client(live, "submit")
    train(live, one)
    newer = train(live, other)
    assert one.get("/v1/embeddings/latest.synthetic").json()["version"] == newer.version


def test_a_stranger_s_versions_do_not_push_the_owner_s_out_of_retention(live: Live):
    owner, stranger = client(live, "submit"), client(live, "submit")
    upload(owner, "papers")
    mine = [train(live, owner, "papers").version for _ in range(2)]
    theirs = [train(live, stranger, "papers").version for _ in range(4)]
    assert live.store.embeddings.expired(keep=2, seconds=0) == theirs[:2]
    assert live.store.embeddings.expired(keep=1, seconds=0) == [mine[0], *theirs[:3]]


def test_one_key_cannot_set_names_without_end(live: Live, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(aliases, "MOST_PER_KEY", 2)
    greedy, other = client(live, "submit"), client(live, "submit")
    versions = [train(live, greedy).version for _ in range(2)]

    def put(caller: httpx.Client, name: str, version: str) -> int:
        return caller.put(f"/v1/aliases/{name}", json={"version": version}).status_code

    assert [put(greedy, name, versions[0]) for name in ("a", "b", "c")] == [200, 200, 429]
    assert put(greedy, "a", versions[1]) == 200, "names that are there can move"
    assert put(other, "c", versions[0]) == 200
    assert greedy.delete("/v1/aliases/b").status_code == 204
    assert put(greedy, "d", versions[0]) == 200
