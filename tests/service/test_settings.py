"""Settings of an encoder elsewhere: checked when the service starts, and its token known to nobody else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.cli.serve import settings_from
from service.dispatch.job_commands import JobCommands
from service.settings import Settings
from trainer.errors import InvalidInput

TOKEN = "0123456789abcdef-secret"


@pytest.mark.parametrize(
    "given, message",
    [
        ({"encoder_address": "encoder", "encoder_token": TOKEN}, "NML_ENCODER_ADDRESS: .*Write host:port"),
        ({"encoder_address": "http://encoder:8100", "encoder_token": TOKEN}, "NML_ENCODER_ADDRESS: .*not an address"),
        ({"encoder_address": "encoder:8100"}, "needs encoder_token .NML_ENCODER_TOKEN"),
        ({"encoder_address": "encoder:8100", "encoder_token": "too-short"}, "NML_ENCODER_TOKEN: .*not 9"),
    ],
)
def test_what_could_not_work_is_refused_when_the_service_starts(tmp_path, monkeypatch, given, message):
    monkeypatch.delenv("NML_ENCODER_TOKEN", raising=False)
    with pytest.raises(InvalidInput, match=message):
        settings_from(home=tmp_path, **given)


def test_address_and_token_reach_the_processes_of_the_service(tmp_path, monkeypatch):
    settings = Settings(home=tmp_path, encoder_address=" encoder:8100", encoder_token=TOKEN)
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    again = Settings()
    assert (again.encoder_address, again.encoder_token) == ("encoder:8100", TOKEN)
    assert again == settings


def test_the_token_is_neither_shown_nor_given_to_jobs(tmp_path, monkeypatch):
    monkeypatch.setenv("NML_ENCODER_TOKEN", TOKEN)
    settings = Settings(home=tmp_path, encoder_address="encoder:8100")
    assert settings.encoder_token == TOKEN
    assert TOKEN not in repr(settings) + str(settings)
    for runner in ({}, {"runner": "ray", "ray_jobs_url": "http://head:8265"}):
        mine = Settings(home=tmp_path, encoder_address="encoder:8100", **runner)
        passed = JobCommands(mine, dict(os.environ) | mine.environment()).environment()
        assert TOKEN not in "".join(passed.values())
        assert "NML_ENCODER_TOKEN" not in passed
    for wrong in ({"port": 70_000}, {"runner": "ray"}, {"encoder_token": "short-secret"}):
        with pytest.raises(ValidationError) as refusal:
            Settings(home=Path("/"), encoder_address="encoder:8100", **wrong)
        assert "secret" not in str(refusal.value)
