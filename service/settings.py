"""What an operator can set, through the environment (prefix NML_) or from code; there is no module-level instance.

Settings()                                   from the environment
Settings(home=Path("/srv/nml"), port=9000)   the same, with two values from code
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from service.encoder.address import TOKEN, check_token, parse_address
from service.net.addresses import is_loopback
from trainer.errors import InvalidInput
from trainer.planning.cpus import usable_cpus
from trainer.planning.memory import parse_size, usable_memory
from trainer.process.home import nml_home

Names = Annotated[tuple[str, ...], NoDecode]  # in the environment, separated by commas


class Settings(BaseSettings):
    """Frozen; every process of the service gets the same (`environment`)."""

    model_config = SettingsConfigDict(
        env_prefix="NML_", frozen=True, extra="forbid", env_ignore_empty=True, hide_input_in_errors=True
    )

    home: Path = Field(default_factory=nml_home, description="where jobs, runs, data sets and databases are kept")
    host: str = Field(
        "127.0.0.1", min_length=1, description="address to listen on; unless it is loopback, clients need a key"
    )
    port: int = Field(8000, ge=0, le=65_535, description="port to listen on")
    api_workers: int = Field(1, ge=1, le=64, description="API processes")
    database_url: str | None = Field(None, description="postgresql://…; default: SQLite in home")

    require_key: bool | None = Field(
        None,
        description="require a key of every client; default: unless host is loopback and no proxy passes it on",
    )
    allowed_hosts: Names = Field((), description="host names that clients may use, besides those of loopback and host")
    allowed_origins: Names = Field((), description="origins of web pages that may call the API (CORS)")

    mlflow_uri: str | None = Field(
        None, description="MLflow tracking URI; default: MLFLOW_TRACKING_URI, else SQLite in home"
    )
    mlflow_ui_url: str | None = Field(None, description="address of MLflow's UI, for links from jobs to their runs")

    runner: Literal["local", "ray"] = Field("local", description="local: processes on this machine; ray: Ray Jobs")
    ray_jobs_url: str | None = Field(
        None, description="address of Ray's dashboard, such as http://head:8265, for runner=ray"
    )
    concurrency: PositiveInt | None = Field(None, description="jobs at a time; default: one for every two CPUs")
    import_concurrency: PositiveInt = Field(
        2, description="data sets checked, and embeddings published or indexed, at a time, beside the jobs"
    )
    import_minutes: PositiveFloat = Field(60.0, description="after which the check of an upload is given up")
    memory_limit: str | None = Field(
        None,
        description="memory for all jobs, such as 16GB; default: most of the machine. On Ray: for the largest job",
    )

    cpu_limit: PositiveInt | None = Field(
        None, description="CPUs that one job may use; default: those of the machine. On Ray: set it to the cluster's"
    )

    lease_seconds: PositiveFloat = Field(
        15.0, description="a dispatcher that is silent for so long loses its jobs to another"
    )
    poll_seconds: float = Field(
        0.25, ge=0.01, le=60, description="seconds between checks for news, of dispatcher and event streams"
    )
    stop_grace_seconds: float = Field(
        30.0, ge=0, description="from SIGTERM to SIGKILL: the time a run has to write a checkpoint"
    )
    heartbeat_timeout_seconds: PositiveFloat = Field(
        900.0, description="a run stops after so long without a heartbeat from a dispatcher"
    )

    infra_retries: int = Field(5, ge=0, le=100, description="retries of a job whose process died")
    oom_retries: int = Field(
        3, ge=0, le=20, description="retries of a job that ran out of memory, each with a smaller plan"
    )
    retry_seconds: float = Field(2.0, ge=0, description="wait before the first retry; doubles with each")
    retry_seconds_max: PositiveFloat = Field(300.0, description="longest wait before a retry")

    max_body_bytes: PositiveInt = Field(1_000_000, description="largest JSON body")
    max_upload_bytes: PositiveInt = Field(10 * 10**9, description="largest upload")
    upload_wait_seconds: float = Field(
        60.0, ge=0, le=3_600, description="how long an upload request waits for the result of the check"
    )
    upload_quota_bytes: PositiveInt = Field(100 * 10**9, description="size of all data sets of one key")
    rate_per_second: PositiveFloat = Field(100.0, description="requests per second of one key or address")
    rate_burst: PositiveInt = Field(500, description="requests of one key or address that may come at once")
    max_active_jobs: PositiveInt = Field(10_000, description="unfinished jobs of one key")
    max_watchers: PositiveInt = Field(1_000, description="open event streams per API process")
    max_watchers_per_key: PositiveInt = Field(100, description="open event streams of one key per API process")
    max_requests_per_key: PositiveInt = Field(
        500, description="requests of one key at a time per API process, event streams among them"
    )
    max_idle_per_address: PositiveInt = Field(
        1_000, description="connections of one address per API process that wait for a request; the oldest are closed"
    )
    max_query_bytes: PositiveInt = Field(64_000_000, description="largest body of a lookup, search or embed")
    search_concurrency: PositiveInt = Field(2, description="searches at a time per API process; others wait")
    index_min_rows: PositiveInt = Field(
        200_000, description="embeddings with at least so many rows get a search index automatically"
    )
    retain_versions: int = Field(
        0, ge=0, description="versions kept per data set and key, besides those with an alias; 0: all"
    )
    retain_days: float = Field(
        0.0, ge=0, description="versions without an alias are deleted after so many days; 0: never"
    )
    parquet_bytes: PositiveInt = Field(
        20 * 10**9, description="disk for whole tables that were downloaded as Parquet; older ones make room"
    )
    scrub_days: float = Field(
        7.0, ge=0, description="published files are compared with their checksums so often, slowly; 0: never"
    )
    inference_idle_seconds: PositiveFloat = Field(600.0, description="an encoder that nobody asks is unloaded after it")
    inference_seconds: PositiveFloat = Field(120.0, description="longest time for new nodes or a classification")
    encoder_address: str | None = Field(
        None, description="host:port of an encoder (python -m service.encoder --listen); none: a child of the API"
    )
    encoder_token: str | None = Field(
        None, repr=False, description="what the encoder asks for; needed with its address"
    )
    min_free_bytes: int = Field(
        200_000_000, ge=0, description="with less free disk space, the API is not ready and takes no uploads"
    )

    @field_validator("allowed_hosts", "allowed_origins", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("home", mode="after")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().resolve()

    @field_validator("memory_limit", mode="after")
    @classmethod
    def _is_a_size(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                parse_size(value)
            except InvalidInput as error:
                raise ValueError(str(error)) from error
        return value

    @field_validator("encoder_address", mode="after")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        return None if value is None else str(parse_address(value))

    @field_validator("encoder_token", mode="after")
    @classmethod
    def _is_a_token(cls, value: str | None) -> str | None:
        if value is not None:
            check_token(value)
        return value

    @model_validator(mode="after")
    def _encoder_has_a_token(self) -> Settings:
        if self.encoder_address is not None and self.encoder_token is None:
            raise ValueError(f"encoder_address needs encoder_token ({TOKEN}), the one that the encoder was given")
        return self

    @model_validator(mode="after")
    def _ray_has_an_address(self) -> Settings:
        if self.runner == "ray" and not self.ray_jobs_url:
            raise ValueError("runner=ray needs ray_jobs_url, such as http://head:8265")
        return self

    @property
    def keys_required(self) -> bool:
        """Whether a request without a key is refused."""
        return not is_loopback(self.host) if self.require_key is None else self.require_key

    @property
    def trusts_loopback(self) -> bool:
        """Whether no key is needed because only this machine can connect, so not for what a proxy passes on."""
        return self.require_key is None and is_loopback(self.host)

    @property
    def database(self) -> str:
        """The SQLAlchemy URL of the store."""
        if self.database_url is None:
            return f"sqlite:///{(self.home / 'service.db').as_posix()}"
        for plain in ("postgresql://", "postgres://"):  # as people and platforms write it
            if self.database_url.startswith(plain):
                return "postgresql+psycopg://" + self.database_url.removeprefix(plain)
        return self.database_url

    @property
    def tracking_uri(self) -> str:
        """MLFLOW_TRACKING_URI of trainers."""
        own = f"sqlite:///{(self.home / 'mlflow.db').as_posix()}"
        return self.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI") or own

    @property
    def slots(self) -> int:
        """Training jobs and sweeps that run at a time."""
        return self.concurrency or max(1, usable_cpus() // 2)

    @property
    def job_cpus(self) -> int | None:
        """CPUs that one job may use; none: only the cluster knows."""
        return self.cpu_limit or (usable_cpus() if self.runner == "local" else None)

    @cached_property
    def memory_bytes(self) -> int:
        """Memory that all jobs of a dispatcher may use together, and so the most that one may use."""
        return usable_memory() if self.memory_limit is None else parse_size(self.memory_limit)

    @property
    def runs(self) -> Path:
        """Run and sweep directories, written by trainer and tuner."""
        return self.home / "runs"

    @property
    def jobs(self) -> Path:
        """The service's own files of each job: launch files, outcomes and output."""
        return self.home / "jobs"

    @property
    def uploads(self) -> Path:
        """Uploaded files until they are imported."""
        return self.home / "uploads"

    @property
    def graphs(self) -> Path:
        """Imported data sets."""
        return self.home / "graphs"

    @property
    def embeddings(self) -> Path:
        """Published versions of embeddings, one folder each."""
        return self.home / "embeddings"

    def version_directory(self, version: str) -> Path:
        return self.embeddings / version

    def run_directory(self, job_id: str) -> Path:
        return self.runs / job_id

    def job_directory(self, job_id: str) -> Path:
        return self.jobs / job_id

    def environment(self) -> dict[str, str]:
        """Variables that give another process of the service the same settings. They hold secrets: not for jobs."""
        document = self.model_dump(mode="json", exclude_none=True)
        texts = {name: ",".join(value) if isinstance(value, list) else value for name, value in document.items()}
        return {
            f"NML_{name.upper()}": str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in texts.items()
        }
