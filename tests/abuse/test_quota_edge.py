"""Uploads that race for the last bytes of a quota, or break off: never more than the quota, nothing is left."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest

from tests.abuse.attackers import attacked, client
from tests.faults.services import wait_for
from tests.service.api.server import Live

QUOTA, AT_ONCE = 150_000, 8


def tables(seed: int, rows: int = 700) -> dict[str, tuple[str, str]]:
    """A graph of about 40 kB on disk; another one for every seed."""
    nodes = "id,a,b,c\n" + "".join(f"n{seed}-{i},{i},{seed},{i % 7}\n" for i in range(rows))
    edges = "source,target\n" + "".join(f"n{seed}-{i},n{seed}-{(i * 7 + 1) % rows}\n" for i in range(rows))
    return {"nodes": ("n.csv", nodes), "edges": ("e.csv", edges)}


def send(caller: httpx.Client, seed: int) -> httpx.Response:
    return caller.post("/v1/datasets", data={"name": f"set-{seed}"}, files=tables(seed))


def uploaded(caller: httpx.Client) -> list[str]:
    """Those that are ready; not what everyone has."""
    items = caller.get("/v1/datasets", params={"limit": 100}).json()["items"]
    return [one["ref"] for one in items if one["name"].startswith(("set-", "broken")) and one["state"] == "ready"]


def stored(live: Live, caller: httpx.Client) -> int:
    """Bytes of this key, by what is on disk."""
    return sum(path.stat().st_size for ref in uploaded(caller) for path in (live.settings.graphs / ref).iterdir())


@pytest.mark.slow
def test_uploads_at_once_never_store_more_than_the_quota_and_all_of_it_can_be_used(tmp_path):
    with attacked(tmp_path / "home", upload_quota_bytes=QUOTA) as live, client(live, "submit") as caller:
        barrier = threading.Barrier(AT_ONCE)

        def race(seed: int) -> int:
            barrier.wait()
            return send(caller, seed).status_code

        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(race, range(AT_ONCE)))
        assert set(answers) <= {201, 403, 422, 429}, answers
        assert answers.count(201) >= 1, answers
        assert stored(live, caller) <= QUOTA
        seed = AT_ONCE
        while send(caller, seed).status_code == 201:  # one after the other, until it is used up
            seed += 1
            assert stored(live, caller) <= QUOTA
        made = uploaded(caller)
        assert len(made) >= 2
        assert caller.delete(f"/v1/datasets/{made[0]}").status_code == 204
        assert send(caller, 1_000).status_code == 201  # what was deleted counts no more
        wait_for(lambda: not list(live.settings.uploads.iterdir()), 30)


@pytest.mark.parametrize("share", [0.1, 0.9])
def test_uploads_that_break_off_leave_nothing_and_use_up_nothing(tmp_path, share):
    with attacked(tmp_path / "home", upload_quota_bytes=QUOTA) as live, client(live, "submit") as caller:
        request = caller.build_request("POST", "/v1/datasets", data={"name": "broken"}, files=tables(0, 2_000))
        body = request.read()
        head = "POST /v1/datasets HTTP/1.1\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in request.headers.items()
        )
        place = urlsplit(live.url)

        def break_off(_: int) -> None:
            with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
                connection.sendall(head.encode() + b"\r\n" + body[: int(share * len(body))])

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(break_off, range(3 * AT_ONCE)))
        wait_for(lambda: send(caller, 1).status_code == 201, 60)  # 429 until the server has noticed the last one
        assert len(uploaded(caller)) == 1
        wait_for(lambda: not list(live.settings.uploads.iterdir()), 60)
