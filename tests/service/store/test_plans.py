"""What API and dispatcher ask all the time reads a page, a queue or one row of an index, however many jobs exist."""

from __future__ import annotations

import pytest
from sqlalchemy import event

from service.settings import Settings
from service.store import open_store

ID = "0" * 26
CALLS = {
    "first page": lambda store: store.jobs.list(kind="train"),
    "next page": lambda store: store.jobs.list(kind="train", before=ID),
    "of a key": lambda store: store.jobs.list(kind="train", owner="a", before=ID),
    "of a data set": lambda store: store.jobs.list(kind="train", dataset="a", before=ID),
    "of a name": lambda store: store.jobs.list(kind="train", name="a", before=ID),
    "of an entry of metadata": lambda store: store.jobs.list(kind="train", metadata={"a": "b"}, before=ID),
    "of a state": lambda store: store.jobs.list(kind="train", states=["running"], before=ID),
    "of several states": lambda store: store.jobs.list(kind="import", states=["queued", "running"], limit=500),
    "events": lambda store: store.events.after(ID, 7),
    "claim": lambda store: store.claims.claim("d", kinds=["train"], lease_seconds=9),
    "fair claim": lambda store: store.claims.claim("d", kinds=["import"], lease_seconds=9, fair=True),
    "renew": lambda store: store.claims.renew_all("d", 9),
    "held": lambda store: store.claims.held("d"),
    "expire": lambda store: store.claims.expire(),
    "take over": lambda store: store.claims.take_over("d", lease_seconds=9, host="h", foreign_after=9),
    "using": lambda store: store.jobs.using("digits.000000000000"),
    "quota": lambda store: store.datasets.bytes_of("a"),
    "page of versions": lambda store: store.embeddings.list(before=ID),
    "page of versions of a data set": lambda store: store.embeddings.list(dataset="digits", before=ID),
}
SCANS_A_SMALL_TABLE = {"quota"}  # data sets are few


@pytest.mark.parametrize("call", CALLS)
def test_a_frequent_call_never_looks_at_all_jobs(call, tmp_path):
    store = open_store(Settings(home=tmp_path))
    asked: list[tuple[str, object]] = []
    for engine in (store.database.reader, store.database.writer):
        event.listen(engine, "before_cursor_execute", lambda c, cursor, text, values, *_: asked.append((text, values)))
    CALLS[call](store)
    plans = []
    with store.database.reader.connect() as connection:
        for text, values in [one for one in asked if one[0].split()[0] in ("SELECT", "UPDATE", "DELETE")]:
            plans += [row[-1] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values)]
    store.close()
    assert plans
    if call not in SCANS_A_SMALL_TABLE:
        whole = [step for step in plans if step.startswith("SCAN") and "USING" not in step]
        assert not whole, plans
    if call.startswith(("first", "next", "of a", "of several")):
        assert not [step for step in plans if "TEMP B-TREE" in step], plans
        assert not [step for step in plans if step.startswith("SCAN")], plans
