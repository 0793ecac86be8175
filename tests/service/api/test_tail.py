"""The end of a log, as whoever follows it sees it again and again."""

from __future__ import annotations

import pytest

from service.api import files
from service.api.files import tail
from service.cli.jobs import overlap


@pytest.fixture
def log(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_LOG_BYTES", 1_000)
    return tmp_path / "log.txt"


def end_of(log, lines=10_000) -> list[str]:
    return tail([(log.parent, log.name)], lines).splitlines(keepends=True)


def test_a_log_that_is_cut_begins_with_a_whole_line_and_is_followed_line_by_line(log):
    lines = [f"{number:>30} of many\n" for number in range(100)]
    log.write_text("".join(lines))
    before = end_of(log)
    assert before == lines[-len(before) :]
    assert 1_000 - len(lines[0]) <= sum(map(len, before)) <= 1_000
    with log.open("a") as file:
        file.write("one more\n")
    now = end_of(log)
    assert now[overlap(before, now) :] == ["one more\n"]


def test_a_short_log_and_a_line_longer_than_all_that_is_read_are_shown(log):
    log.write_text("first\nsecond\n")
    assert end_of(log) == ["first\n", "second\n"]
    assert end_of(log, 1) == ["second\n"]
    log.write_text("x" * 5_000)
    assert end_of(log) == ["x" * 1_000]
