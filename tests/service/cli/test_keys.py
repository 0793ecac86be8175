"""`nml keys`: made, listed and revoked in the service's own database."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.settings import Settings
from service.store import open_store
from tests.service.api.server import serving
from tests.service.cli.commands import nml


def test_a_key_opens_the_service_until_it_is_revoked(tmp_path: Path, monkeypatch):
    home = str(tmp_path / "home")
    made = nml("keys", "create", "ada", "--scope", "submit", "--home", home)
    key = made.stdout.strip()
    assert "not shown again" in made.stderr
    assert key not in made.stderr
    with serving(Settings(home=tmp_path / "home", require_key=True)) as locked:
        monkeypatch.setenv("NML_URL", locked.url)
        monkeypatch.delenv("NML_API_KEY", raising=False)
        assert "key" in nml("jobs", code=3).stderr
        assert nml("jobs", "--key", key, "--json").stdout.strip() == "[]"
        assert nml("submit", "--key", key).stdout.strip()
    identity = key.split("_")[1]
    assert identity in nml("keys", "revoke", key, "--home", home).stderr
    with serving(Settings(home=tmp_path / "home", require_key=True)) as locked:
        monkeypatch.setenv("NML_URL", locked.url)
        nml("jobs", "--key", key, code=3)


def test_lists_show_everything_but_secrets(tmp_path: Path):
    home = str(tmp_path / "home")
    assert "There are no keys" in nml("keys", "list", "--home", home).stderr
    told = json.loads(nml("keys", "create", "bot", "--scope", "read", "--days", "1", "--home", home, "--json").stdout)
    nml("keys", "create", "boss", "--scope", "admin", "--home", home)
    nml("keys", "revoke", told["id"], "--home", home)
    listed = json.loads(nml("keys", "list", "--json", "--home", home).stdout)
    assert [(key["name"], key["scopes"], key["state"]) for key in listed] == [
        ("bot", ["read"], "revoked"),
        ("boss", ["admin"], "valid"),
    ]
    assert listed[0]["expires"] == pytest.approx(listed[0]["created"] + 86_400, abs=5)
    table = nml("keys", "list", "--home", home).stdout
    assert "revoked" in table
    assert told["key"].split("_")[2] not in table
    store = open_store(Settings(home=tmp_path / "home"))
    assert [key.id for key in store.keys.list()] == [key["id"] for key in listed]
    store.close()


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        (["keys", "create", "x", "--scope", "root"], 3, "read, submit, admin"),
        (["keys", "create", ""], 3, "name"),
        (["keys", "create", "x", "--days", "0"], 2, "--days"),
        (["keys", "revoke", "nobody"], 3, "nml keys list"),
    ],
)
def test_mistakes_get_a_sentence_and_the_right_exit_code(tmp_path: Path, arguments, code, says):
    assert says in nml(*arguments, "--home", str(tmp_path / "home"), code=code).stderr
