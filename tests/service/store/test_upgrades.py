"""From the schema of every earlier revision, with rows in it, to today's: nothing is lost, all of it is readable."""

from __future__ import annotations

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, func, insert, inspect, select

from service.store import open_store
from service.store.engine import connect, reading, writing
from service.store.migrate import _SCRIPTS
from service.store.tables import metadata

REVISIONS = [script.revision for script in ScriptDirectory(str(_SCRIPTS)).walk_revisions()][::-1]
JOB = f"{1:026d}"
VALUES = {  # of columns whose values mean something; others get one that fits their type
    "jobs": {"kind": "train", "state": "succeeded", "spec": "{}", "progress": "{}", "metrics": "{}", "relay": "{}",
             "runner": "{}", "result": "{}", "failure_message": '"x"', "tracker_error": '"x"', "last_seq": 1,
             "metadata": "{}"},
    "datasets": {"state": "ready", "options": "{}", "about": "{}", "failure": "null"},
    "dispatchers": {"info": "{}"},
    "keys": {"scopes": '["read"]'},
    "events": {"data": "{}", "seq": 1},
    "embeddings": {"state": "ready", "about": "{}", "metrics": "{}", "indexes": "{}", "failure": "null", "name": '"x"'},
    "counters": {"name": "retries.infra"},
}  # fmt: skip


def fill(connection: Connection) -> dict[str, int]:
    """A row for each table there is, in whatever columns it has; how many rows each table has then."""
    there = MetaData()
    there.reflect(connection)
    for table in there.sorted_tables:
        if table.name == "alembic_version":
            continue
        row = {column.name: VALUES.get(table.name, {}).get(column.name, _value(column)) for column in table.columns}
        connection.execute(insert(table).values(row))
    return counts(connection)


def _value(column):
    if column.name in ("id", "job_id", "version") and str(column.type).startswith("VARCHAR"):
        return JOB[: column.type.length]
    if str(column.type) == "TEXT":
        return '"x"'  # JSON
    kind = column.type.python_type
    return {str: "x", int: 1, float: 1.0, bool: False}[kind]


def counts(connection: Connection) -> dict[str, int]:
    there = MetaData()
    there.reflect(connection)
    return {
        table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
        for table in there.sorted_tables
    }


@pytest.mark.parametrize("revision", REVISIONS)
def test_rows_of_every_revision_survive_the_way_to_the_newest(settings, revision):
    settings.home.mkdir(parents=True, exist_ok=True)
    database = connect(settings.database)
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS))
    with writing(database) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        before = fill(connection)
    store = open_store(settings)
    with reading(store.database) as connection:
        after = counts(connection)
        for name, table in metadata.tables.items():
            assert len(connection.execute(select(table)).all()) == after[name]  # all columns, decoded
            indexes = {index["name"] for index in inspect(connection).get_indexes(name)}
            assert {index.name for index in table.indexes} <= indexes
    assert {name: after[name] for name in before if name != "counters"} | {"counters": before["counters"]} == before
    assert after["counters"] >= before["counters"]
    (job,) = store.jobs.list(kind="train")[0]
    assert (job.id, job.state) == (JOB, "succeeded")
    assert store.events.after(JOB, 0)[0].data == {}
    store.embeddings.snapshot()
    database.close()
    store.close()


def test_every_revision_follows_from_the_one_before_it():
    assert sorted(REVISIONS) == REVISIONS
    assert len(ScriptDirectory(str(_SCRIPTS)).get_heads()) == 1
