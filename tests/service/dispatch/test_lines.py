"""Lines of a file that grows, is replaced, is cut, or holds something monstrous."""

from __future__ import annotations

import os

from service.dispatch import lines
from service.dispatch.lines import LineReader


def test_only_complete_lines_are_given_each_once(tmp_path):
    file, reader = tmp_path / "f", LineReader(tmp_path / "f")
    assert reader.read() == (False, [], False)
    file.write_bytes(b"one\ntw")
    assert reader.read() == (True, [b"one"], False)
    assert reader.read() == (False, [], False)
    with file.open("ab") as out:
        out.write(b"o\nthree\n")
    assert reader.read() == (False, [b"two", b"three"], False)


def test_a_file_that_replaces_it_is_read_from_its_beginning(tmp_path):
    file, reader = tmp_path / "f", LineReader(tmp_path / "f")
    file.write_bytes(b"one\ntwo\n")
    reader.read()
    for text in (b"one\n2\n", b"one\nzwei\n"):  # twice: the second may get the first one's inode
        (tmp_path / "g").write_bytes(text)
        os.replace(tmp_path / "g", file)
        assert reader.read() == (True, text.split(), False)


def test_a_file_cut_shorter_than_what_was_read_is_read_again(tmp_path):
    file, reader = tmp_path / "f", LineReader(tmp_path / "f")
    file.write_bytes(b"one\ntwo\n")
    reader.read()
    os.truncate(file, 4)
    assert reader.read() == (True, [b"one"], False)


def test_what_a_crash_cut_off_and_someone_removed_is_no_line(tmp_path):
    file, reader = tmp_path / "f", LineReader(tmp_path / "f")
    file.write_bytes(b"one\ntw")
    reader.read()
    os.truncate(file, 4)
    with file.open("ab") as out:
        out.write(b"three\n")
    assert reader.read() == (False, [b"three"], False)


def test_a_monstrous_line_takes_bounded_memory_and_counts_as_one(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE", 10)
    monkeypatch.setattr(lines, "CHUNK", 16)
    file, reader = tmp_path / "f", LineReader(tmp_path / "f")
    file.write_bytes(b"one\n" + b"x" * 100 + b"\ntwo\n" + b"y" * 12 + b"\nthree\n")
    found = []
    for _ in range(20):
        found += reader.read()[1]
    assert found == [b"one", None, b"two", None, b"three"]
