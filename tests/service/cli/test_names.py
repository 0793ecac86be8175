"""Names are other people's words: they are shown as they are, and give no commands to a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.cli.serve import Role, _announcing
from tests.service.api.server import SMALL, Live
from tests.service.cli.commands import nml


@pytest.mark.parametrize("name", ["try [/2]", "run [v2]", "[red]", "a [link=x]b[/link]"])
def test_a_name_with_brackets_is_listed_as_it_was_given(live: Live, name: str):
    live.submit(name=name)
    live.http.post("/v1/jobs", json=SMALL | {"run": {"name": name}})
    assert nml("jobs").stdout.count(name) == 2


def test_a_key_s_name_too(tmp_path: Path):
    nml("keys", "create", "ci [/prod]", "--home", str(tmp_path))
    assert "ci [/prod]" in nml("keys", "list", "--home", str(tmp_path)).stdout


@pytest.mark.parametrize("name", ["a\x1b]0;pwned\x07", "a\nb", "a\x9b2J"])
def test_a_name_that_would_command_a_terminal_is_refused(live: Live, name: str):
    by_query = live.http.post("/v1/jobs", json=SMALL, params={"name": name})
    by_spec = live.http.post("/v1/jobs", json=SMALL | {"run": {"name": name}})
    assert (by_query.status_code, by_query.json()["errors"][0]["field"]) == (422, "name")
    assert (by_spec.status_code, by_spec.json()["errors"][0]["field"]) == (422, "run.name")


def test_what_to_do_is_said_with_the_port_that_was_found(capsys: pytest.CaptureFixture[str]):
    say = _announcing(Role.ALL)
    for line in ("API      http://127.0.0.1:43210/v1/jobs", "docs     http://127.0.0.1:43210/docs"):
        say(line)
    told = capsys.readouterr().out
    assert "--url http://127.0.0.1:43210\n" in told
    assert "http://127.0.0.1:43210/readyz" in told
    assert told.count("nml submit") == 1
