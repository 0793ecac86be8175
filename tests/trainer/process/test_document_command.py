"""A document that cannot be carried out says why, by exit code and in words without a path of the machine."""

from __future__ import annotations

import json
import os

import pytest

from trainer.errors import InvalidInput
from trainer.process.document_command import run_document
from trainer.spec.base import Spec


class Greeting(Spec):
    """The document of these tests."""

    name: str


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Writes a document and has it carried out; returns the exit code and what the starting process would read."""
    home = tmp_path / "home"
    monkeypatch.setenv("NML_HOME", str(home))

    def given(document, work, **options):
        file = tmp_path / "spec.json"
        if document is not None:
            file.write_text(document)
        reading, writing = os.pipe()
        monkeypatch.setenv("NML_OUTCOME_FD", str(writing))
        try:
            code = run_document(
                [str(file)], module="tests.document", about=None, parse=Greeting.model_validate_json,
                work=lambda found, place: work(found, place), trouble="nobody was greeted", **options,
            )  # fmt: skip
        finally:
            os.close(writing)
        with os.fdopen(reading) as pipe:
            told = pipe.read()
        return code, json.loads(told) if told else None

    return given


def raising(error):
    def work(found, home):
        raise error(home)

    return work


def test_what_a_document_says_is_done_once_in_the_home(run, tmp_path):
    done = []
    assert run('{"name": "Ada"}', lambda found, home: done.append((found.name, home))) == (0, None)
    assert done == [("Ada", tmp_path / "home")]


@pytest.mark.parametrize(
    "document, code, kind, words",
    [
        ("{}", 3, "invalid", "name"),
        ('{"name": "Ada", "age": 36}', 3, "invalid", "age"),
        ("[", 3, "invalid", "JSON"),
        (None, 5, "infra", "the document cannot be read (No such file or directory)"),
    ],
)
def test_an_invalid_document_is_not_begun(run, document, code, kind, words):
    found, told = run(document, lambda *_: pytest.fail("it was begun"))
    assert (found, told["kind"]) == (code, kind)
    assert words in told["message"]


@pytest.mark.parametrize(
    "error, code, message",
    [
        (lambda home: InvalidInput(f"{home}/uploads/a.csv: no such column; set data.x"), 3,
         "uploads/a.csv: no such column; set option x"),
        (lambda home: MemoryError("unable to allocate 4 GiB"), 4,
         "nobody was greeted: memory ran out (unable to allocate 4 GiB)"),
        (lambda home: RuntimeError(f"{home} is odd"), 5, "nobody was greeted (home is odd)"),
    ],
)  # fmt: skip
def test_a_failure_is_told_by_its_kind_in_words_for_clients(run, error, code, message):
    found, told = run(
        '{"name": "Ada"}', raising(error), reword=lambda text: text.replace("data.x", "option x")
    )  # fmt: skip
    assert (found, told["message"]) == (code, message)
