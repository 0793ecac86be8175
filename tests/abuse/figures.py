"""Figures of the attacks in docs/security-findings.md: `python -m tests.abuse.figures [wide packed flood idle]`.

Each attack is made for real, on a service in a process of its own with a home in a temporary folder. To compare with an
earlier commit, put this file and `measured.py` into a checkout of it.
"""

from __future__ import annotations

import json
import resource
import socket
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from service.settings import Settings
from service.store import open_store
from tests.abuse.measured import MeasuredApi, measured_api

STRANGERS, VALID = 8, 28
CONNECTIONS, ASKED = 5_000, 20


def wide(home: Path) -> str:
    """Finding 1: a table of 3 rows and 50,000 columns."""
    from tests.abuse.test_imports import constant_table, run_import

    size = constant_table(_upload(home), rows=3, columns=50_000).stat().st_size
    began = time.monotonic()
    code, _ = run_import(home)
    return f"{size:,} bytes of Parquet are checked in {time.monotonic() - began:.1f} s (exit code {code})"


def packed(home: Path) -> str:
    """Finding 2: 500,000 rows of 500 columns, 1 GB unpacked, with 100 MB of quota left."""
    from tests.abuse.test_imports import constant_table, run_import, written

    size, most, done = constant_table(_upload(home), rows=500_000, columns=500).stat().st_size, 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.02):
            most = max(most, written(home))

    watcher = threading.Thread(target=watch)
    watcher.start()
    code, _ = run_import(home, max_bytes=100_000_000)
    done.set()
    watcher.join()
    return f"{size:,} bytes of Parquet; at most {most:,} bytes written, {written(home):,} left (exit code {code})"


def flood(home: Path) -> str:
    """Finding 3: keys that were not seen before, from the address of a flood without keys, as behind a proxy."""
    settings = Settings(home=home, memory_limit="4GB", require_key=True)
    keys = [_key(settings) for _ in range(VALID)]
    ended, sent = threading.Event(), [0] * STRANGERS

    with measured_api(settings) as api:

        def stranger(number: int) -> None:
            while not ended.is_set():
                api.ask("GET", "/v1/jobs", {}, None)
                sent[number] += 1

        threads = [threading.Thread(target=stranger, args=[number]) for number in range(STRANGERS)]
        for thread in threads:
            thread.start()
        began = time.monotonic()
        time.sleep(3)  # until their burst is used up
        found = []
        for key in keys:
            found.append(api.ask("GET", "/v1/jobs", {"Authorization": f"Bearer {key}"}, None))
            time.sleep(0.1)
        seconds = time.monotonic() - began
        ended.set()
        for thread in threads:
            thread.join()
    return f"{found.count(429)} of {VALID} valid requests refused, beside {sum(sent) / seconds:.0f} strangers a second"


def idle(home: Path) -> str:
    """Finding 6: connections that ask nothing."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    settings = Settings(home=home, memory_limit="4GB", require_key=True)
    key = {"Authorization": f"Bearer {_key(settings)}"}
    with measured_api(settings) as api, ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", api.port), timeout=60))
        probes = [_answer(api, "/livez", {}) for _ in range(ASKED)]
        valid = [_answer(api, "/v1/jobs", key) for _ in range(ASKED)]
    answered = f"{probes.count(200)} of {ASKED} probes and {valid.count(200)} of {ASKED} requests with a key"
    return f"beside {CONNECTIONS:,} of them, answers to {answered}"


def _answer(api: MeasuredApi, path: str, headers: dict[str, str]) -> int:
    return api.ask("GET", path, headers, None)


def _key(settings: Settings) -> str:
    store = open_store(settings)
    try:
        return store.keys.create("figures", frozenset({"read"}))[1]
    finally:
        store.close()


def _upload(home: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tests.abuse.test_imports import UPLOAD

    folder = home / "uploads" / UPLOAD
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"source": ["0"], "target": ["1"]}), folder / "edges.parquet")
    return home


ATTACKS = {"wide": wide, "packed": packed, "flood": flood, "idle": idle}


def main() -> int:
    for name in sys.argv[1:] or ATTACKS:
        with tempfile.TemporaryDirectory() as home:
            print(json.dumps({name: ATTACKS[name](Path(home))}, ensure_ascii=False), flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
