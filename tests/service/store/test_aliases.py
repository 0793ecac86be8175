"""Names that point to versions: moved by one at a time, with a history without gaps, and never to nothing."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from service.store.errors import InUse, NotFound, StateConflict
from service.store.records import ALIAS, Alias, Embedding, automatic_aliases, is_automatic
from tests.service.store.conftest import at_once, both
from tests.service.store.published import ABOUT, ready, trained


def moves(store, name):
    """Versions in the order of the moves; their numbers have no gaps."""
    found = store.aliases.history(name, limit=1_000)[::-1]
    assert [move.seq for move in found] == list(range(1, len(found) + 1))
    return [(move.version, move.reason) for move in found]


def test_moved_rolled_back_step_by_step_and_removed(store):
    a, b, c, d = (ready(store).version for _ in range(4))
    for version in (a, b, c):
        store.aliases.move("prod", version, owner="k1")
    assert store.aliases.rollback("prod", owner="k2").version == b
    assert store.aliases.rollback("prod", owner="k2").version == a  # one further, not forth
    with pytest.raises(StateConflict, match="never"):
        store.aliases.rollback("prod", owner="k2")
    store.aliases.move("prod", d, owner="k1")
    back = store.aliases.rollback("prod", owner="k2")
    assert (back.version, back.owner, back.automatic, back.seq) == (a, "k1", False, 7)
    store.aliases.remove("prod", owner="k3")
    assert store.aliases.get("prod") is None
    with pytest.raises(NotFound):
        store.aliases.remove("prod", owner="k3")
    with pytest.raises(NotFound):
        store.aliases.rollback("prod", owner="k3")
    store.aliases.move("prod", b, owner="k4")
    with pytest.raises(StateConflict):
        store.aliases.rollback("prod", owner="k4")
    assert moves(store, "prod") == [
        (a, "set"), (b, "set"), (c, "set"), (b, "rollback"), (a, "rollback"), (d, "set"), (a, "rollback"),
        (None, "removed"), (b, "set"),
    ]  # fmt: skip
    assert [move.owner for move in store.aliases.history("prod", before=9, limit=2)] == ["k3", "k2"]


def test_rolling_back_passes_over_versions_that_are_gone_and_the_present_one(store):
    a, b, c = (ready(store).version for _ in range(3))
    ready(store)  # so that `latest` holds none of them
    for version in (a, c, b, c):
        store.aliases.move("prod", version, owner=None)
    store.embeddings.delete(b)
    assert store.aliases.rollback("prod", owner=None).version == a
    store.aliases.move("prod", c, owner=None)
    store.embeddings.delete(a)
    with pytest.raises(StateConflict):
        store.aliases.rollback("prod", owner=None)
    assert store.aliases.get("prod").version == c


def test_the_same_version_again_changes_nothing(store):
    version = ready(store).version
    first = store.aliases.move("prod", version, owner="k1")
    revision = store.embeddings.revision()
    assert store.aliases.move("prod", version, owner="k2") == first
    assert store.embeddings.revision() == revision


def test_expectations(store):
    a, b = ready(store).version, ready(store).version
    with pytest.raises(StateConflict, match="does not exist"):
        store.aliases.move("prod", a, owner=None, expected=b)
    store.aliases.move("prod", a, owner=None, expected="")
    for expected in ("", b):
        with pytest.raises(StateConflict, match=f"points to {a}"):
            store.aliases.move("prod", b, owner=None, expected=expected)
    store.aliases.move("prod", b, owner=None, expected=a)
    with pytest.raises(StateConflict):
        store.aliases.rollback("prod", owner=None, expected=a)
    assert store.aliases.rollback("prod", owner=None, expected=b).version == a


def test_only_to_versions_that_are_ready_and_only_by_possible_names(store):
    unready, version = trained(store).id, ready(store).version
    for missing in (unready, "0" * 26, ""):
        with pytest.raises(NotFound):
            store.aliases.move("prod", missing, owner=None)
    for name in ("latest", "latest.digits", "latest.whatever"):
        with pytest.raises(StateConflict, match="by itself"):
            store.aliases.move(name, version, owner=None)
        with pytest.raises(StateConflict, match="by itself"):
            store.aliases.rollback(name, owner=None)
        with pytest.raises(StateConflict, match="by itself"):
            store.aliases.remove(name, owner=None)
    for name in ("", "Prod", "a/b", ".x", "a" * 65, version, "a\n"):
        with pytest.raises(ValueError, match="cannot be"):
            store.aliases.move(name, version, owner=None)
    assert [alias.name for alias in store.aliases.list()[0]] == ["latest", "latest.digits"]


def test_pages_in_the_order_of_names(store):
    version = ready(store).version
    for name in ("c", "a", "b"):
        store.aliases.move(name, version, owner=None)
    first, cursor = store.aliases.list(limit=2)
    rest, end = store.aliases.list(after=cursor, limit=9)
    assert [alias.name for alias in first + rest] == ["a", "b", "c", "latest", "latest.digits"]
    assert (cursor, end) == ("b", None)


def test_many_at_once_each_move_is_kept_once_and_numbered_without_gaps(store):
    versions = [ready(store).version for _ in range(4)]

    def work(number):
        return [store.aliases.move("prod", versions[(number + turn) % 4], owner=None) for turn in range(3)]

    found = at_once(8, work)
    assert not [result for result in found if isinstance(result, Exception)]
    told = moves(store, "prod")
    assert all(one != two for one, two in pairwise(told))  # the same again is no move
    last = store.aliases.get("prod")
    assert (last.version, last.seq) == (told[-1][0], len(told))
    given = {(alias.seq, alias.version) for part in found for alias in part}
    assert given == {(seq, version) for seq, (version, _) in enumerate(told, 1)}


def test_of_many_who_expect_the_same_exactly_one_wins(store):
    versions = [ready(store).version for _ in range(8)]
    start = ready(store).version
    store.aliases.move("prod", start, owner=None)
    found = at_once(8, lambda number: store.aliases.move("prod", versions[number], owner=None, expected=start))
    won = [result for result in found if isinstance(result, Alias)]
    assert len(won) == 1
    assert sum(isinstance(result, StateConflict) for result in found) == 7
    assert moves(store, "prod") == [(start, "set"), (won[0].version, "set")]
    made = at_once(8, lambda number: store.aliases.move("new", versions[number], owner=None, expected=""))
    assert sum(isinstance(result, Alias) for result in made) == 1


def test_a_version_is_never_deleted_while_a_name_moves_to_it(store):
    for _ in range(6):
        version = ready(store).version
        ready(store)
        move = partial(store.aliases.move, "prod", version, owner=None)
        moved, deleted = both(move, partial(store.embeddings.delete, version))
        if isinstance(moved, Alias):
            assert isinstance(deleted, InUse), deleted
            assert store.embeddings.get(version).state == "ready"
        else:
            assert isinstance(moved, NotFound), moved
            assert isinstance(deleted, Embedding)
        snapshot = store.embeddings.snapshot()
        assert set(snapshot.aliases.values()) <= set(snapshot.versions)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_automatic_names_only_move_forward_whatever_is_published_first(store, order):
    jobs = [trained(store, "papers.0123456789ab"), trained(store, "papers.ba9876543210")]
    for number in order:
        publisher = store.embeddings.get(jobs[number].id).job_id
        store.embeddings.finish(jobs[number].id, publisher, about=ABOUT)
    for name in ("latest", "latest.papers"):
        alias = store.aliases.get(name)
        assert (alias.version, alias.automatic, alias.seq) == (jobs[1].id, True, 2 if order == (0, 1) else 1)
    assert {reason for _, reason in moves(store, "latest")} == {"automatic"}


def test_publishing_many_at_once_ends_at_the_newest(store):
    jobs = [trained(store) for _ in range(6)]
    publishers = [store.embeddings.get(job.id).job_id for job in jobs]
    found = at_once(6, lambda number: store.embeddings.finish(jobs[number].id, publishers[number], about=ABOUT))
    assert all(isinstance(result, Embedding) for result in found)
    told = [version for version, _ in moves(store, "latest")]
    assert told == sorted(told)
    assert told[-1] == jobs[-1].id


def test_automatic_names_fall_back_when_their_version_is_deleted(store):
    first, papers, last = ready(store), ready(store, "papers.0123456789ab"), ready(store)
    assert store.embeddings.snapshot().aliases == {
        "latest": last.version, "latest.digits": last.version, "latest.papers": papers.version,
    }  # fmt: skip
    store.embeddings.delete(last.version)
    assert store.embeddings.snapshot().aliases == {
        "latest": papers.version, "latest.digits": first.version, "latest.papers": papers.version,
    }  # fmt: skip
    store.embeddings.delete(papers.version)
    assert store.embeddings.snapshot().aliases == {"latest": first.version, "latest.digits": first.version}
    assert moves(store, "latest.papers")[-1] == (None, "removed")
    anew = ready(store, "papers.0123456789ab")
    assert store.aliases.get("latest.papers").version == anew.version
    assert moves(store, "latest.papers")[-1] == (anew.version, "automatic")


def test_every_data_set_has_an_automatic_name_of_its_own(store):
    long = "p" * 90
    datasets = ("cora", "Cora", "CORA", f"{long}1.0123456789ab", f"{long}2.0123456789ab")
    versions = {dataset: ready(store, dataset).version for dataset in datasets}
    names = {dataset: automatic_aliases(dataset)[1] for dataset in datasets}
    assert names["cora"] == "latest.cora"
    assert all(ALIAS.fullmatch(name) and is_automatic(name) for name in names.values())
    assert {dataset: store.aliases.get(name).version for dataset, name in names.items()} == versions
    assert automatic_aliases("papers.0123456789ab") == automatic_aliases("papers.ba9876543210")
