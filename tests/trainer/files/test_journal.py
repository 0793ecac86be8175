"""Whoever reads a journal sees each event once and whole, whatever happens to the process that appends to it."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.files import journal
from trainer.files.journal import JournalReader, append, end_offset, finite, fold, read_journal

_EPOCHS = st.integers(0, 9)
START_OVER = {"type": "rewind", "epoch": 0}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def epoch(number: int) -> dict[str, object]:
    return {"type": "epoch", "epoch": number}


def read(reader: JournalReader, limit: int | None = None) -> list[dict[str, object]]:
    return [entry.event for entry in reader.read(limit)]


def write(path, text: bytes) -> None:
    with path.open("ab", buffering=0) as file:
        file.write(text)


def test_events_come_once_and_in_order(path):
    reader = JournalReader(path)
    assert (read(reader), reader.at_end) == ([], True)
    append(path, epoch(1))
    append(path, epoch(2))
    assert (read(reader), read(reader)) == ([epoch(1), epoch(2)], [])
    append(path, epoch(3))
    assert (read(reader), reader.at_end) == ([epoch(3)], True)


def test_reading_goes_on_at_the_offset_of_any_event(path):
    for number in range(10):
        append(path, epoch(number))
    for entry in JournalReader(path).read():
        rest = JournalReader(path, entry.offset).read()
        assert [later.event["epoch"] for later in rest] == list(range(entry.event["epoch"] + 1, 10))


def test_a_limit_leaves_the_rest_for_the_next_call(path):
    for number in range(5):
        append(path, epoch(number))
    reader = JournalReader(path)
    found = [(read(reader, 2), reader.at_end) for _ in range(3)]
    assert found == [([epoch(0), epoch(1)], False), ([epoch(2), epoch(3)], False), ([epoch(4)], True)]


def test_a_line_is_given_when_it_is_complete(path):
    reader = JournalReader(path)
    write(path, b'{"type": "epoch", ')
    assert read(reader) == []
    write(path, b'"epoch": 1}\n')
    assert read(reader) == [epoch(1)]


@given(cut=st.integers(1, 40))
def test_a_line_that_a_crash_cut_off_is_removed_by_the_next(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("run") / "events.jsonl"
    reader = JournalReader(path)
    append(path, epoch(1))
    whole = path.read_bytes()
    append(path, epoch(2) | {"more": "x" * 40})
    os.truncate(path, len(whole) + cut)
    assert read(reader) == [epoch(1)]
    assert end_offset(path) == len(whole)
    append(path, epoch(3), durable=True)
    assert read(reader) == [epoch(3)]
    assert path.read_bytes() == whole + json.dumps(epoch(3)).encode() + b"\n"


def test_a_first_line_or_a_long_line_that_was_cut_off_is_removed_too(path):
    write(path, b"x" * (2 * journal.MAX_LINE))
    reader = JournalReader(path)
    assert read(reader) == []
    append(path, epoch(1))
    assert (read(reader), read_journal(path)) == ([epoch(1)], [epoch(1)])


def test_what_is_no_event_is_skipped(path):
    write(path, b'{"type": "epo\n[1]\n\n{"epoch": 3}\n{"type": 3}\n' + b"[" * 100_000 + b"\n\xff\n")
    append(path, epoch(1))
    assert read_journal(path) == [epoch(1)]


def test_a_monstrous_line_takes_bounded_memory_and_is_skipped(path, monkeypatch):
    monkeypatch.setattr(journal, "MAX_LINE", 40)
    monkeypatch.setattr(journal, "CHUNK", 64)
    for number in range(3):
        append(path, epoch(number))
        write(path, json.dumps({"type": "x" * (45 + 100 * number)}).encode() + b"\n")
    assert read_journal(path) == [epoch(0), epoch(1), epoch(2)]
    reader = JournalReader(path)
    write(path, b"x" * 500)  # not complete yet
    while not reader.at_end:
        reader.read()
    assert reader.offset == path.stat().st_size - 500, "a stored offset is always that of a line"
    write(path, b"x\n")
    append(path, epoch(3))
    found = [event for _ in range(20) for event in read(reader)]
    assert found == [epoch(3)]


@pytest.mark.parametrize("regrown", [1, 30])
def test_a_file_that_was_written_anew_is_read_from_its_beginning_after_a_rewind(path, regrown):
    for number in range(1, 6):
        append(path, epoch(number))
    reader = JournalReader(path)
    offset = reader.read()[-1].offset
    path.unlink()
    assert read(reader) == []
    lines = [epoch(number) | {"again": True} for number in range(1, regrown + 1)]
    for line in lines:
        append(path, line)
    assert read(reader) == read(JournalReader(path, offset)) == [START_OVER, *lines]
    assert read(reader) == []


def test_a_file_restored_from_an_older_backup_is_read_again(path):
    append(path, epoch(1))
    backup = path.read_bytes()
    append(path, epoch(2))
    reader = JournalReader(path)
    reader.read()
    path.write_bytes(backup)
    first, second = reader.read()
    assert (first.event, first.offset) == (START_OVER, 0)
    assert (second.event, second.offset) == (epoch(1), len(backup))


def test_a_reader_from_the_end_sees_only_what_is_appended(path):
    assert end_offset(path) == 0
    append(path, epoch(1))
    write(path, b'{"torn')
    reader = JournalReader(path, end_offset(path))
    append(path, epoch(2))
    assert read(reader) == [epoch(2)]


def test_a_rewind_takes_back_what_came_after_its_epoch():
    rewind, resume = {"type": "rewind", "epoch": 2}, {"type": "resume", "epoch": 2}
    start, end = {"type": "start"}, {"type": "end", "epoch": 3}
    events = [start, epoch(1), epoch(2), epoch(3), rewind, resume, epoch(3), rewind, resume, epoch(3) | {"a": 1}, end]
    assert fold(events) == [start, epoch(1), epoch(2), resume, resume, epoch(3) | {"a": 1}, end]
    assert fold([*events, START_OVER]) == [start]
    assert fold([]) == []


@given(
    st.lists(st.one_of(st.integers(0, 9).map(epoch), st.integers(0, 9).map(lambda e: {"type": "rewind", "epoch": e})))
)
def test_folding_in_parts_is_folding_at_once(events):
    for cut in range(len(events) + 1):
        assert fold([*fold(events[:cut]), *events[cut:]]) == fold(events)


def test_numbers_that_no_json_has_become_none(path):
    append(path, {"type": "epoch", "epoch": 1, "metrics": {"loss": float("nan"), "b": float("inf"), "c": [1e16, -0.5]}})
    (event,) = read_journal(path)
    assert finite(event)["metrics"] == {"loss": None, "b": None, "c": [1e16, -0.5]}
    json.dumps(finite(event), allow_nan=False)


def test_an_append_that_fails_leaves_a_journal_that_can_be_continued(path):
    append(path, epoch(1))
    with pytest.raises(TypeError):
        append(path, {"type": "epoch", "epoch": object()})
    append(path, epoch(2))
    assert read_journal(path) == [epoch(1), epoch(2)]
