"""Stands in for `python -m trainer`: the same files, events, lock, signals and exit codes, within milliseconds.

    python standin_trainer.py SPEC.json --out DIR --resume --memory-limit N [--shrunk K]

The spec is any document with {"optimiser": {"epochs": 20}, "run": {"seed": 0}}. "standin" in it, or JSON behind
"standin " in run.name where the schema is closed, says how it behaves:

    seconds           that an epoch takes                         checkpoint_every   epochs between checkpoints
    exit, message     fail with this code ...                     signal             or by this signal to itself ...
    at                ... after this epoch                        attempts           ... in so many first attempts only
    until             wait there until this file exists, or we are asked to end
    deaf              ignore SIGTERM                              family             leave processes behind
    print             bytes to write to stdout at every epoch     eat                megabytes of memory to take
    tracked           write tracking.json as the tracker does     fill               disk: write until there is no room
    export            leave embeddings of so many nodes           damage             ... with a byte changed afterwards

The losses depend on all epochs before, so a run that resumes wrongly has another curve (`losses`).
Standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CHECKPOINTS_KEPT = 2
DIM = 4  # of an export


def behaviour(document: dict[str, Any]) -> dict[str, Any]:
    """How the spec asks us to behave."""
    name = (document.get("run") or {}).get("name") or ""
    asked = json.loads(name.removeprefix("standin ")) if name.startswith("standin ") else document.get("standin", {})
    return {"seconds": 0.01, "checkpoint_every": 3, "at": 2, "attempts": 1_000} | asked


def after(state: int, seed: int, shrunk: int) -> int:
    return (state * 6364136223846793005 + 1442695040888963407 + (seed << 50) + (shrunk << 60)) % 2**64


def losses(seed: int, epochs: int, *, shrunk_from: int | None = None, shrunk: int = 0) -> list[float]:
    """The curve of an uninterrupted run; `shrunk_from`: the first epoch with the smaller plan."""
    state, found = 1, []
    for epoch in range(1, epochs + 1):
        state = after(state, seed, shrunk if shrunk_from is not None and epoch >= shrunk_from else 0)
        found.append(state / 2**64)
    return found


class Run:
    """A run directory, opened as the trainer does."""

    def __init__(self, path: Path, document: dict[str, Any], shrunk: int):
        path.mkdir(parents=True, exist_ok=True)
        self.path, self.document, self.shrunk = path, document, shrunk
        self.behaviour = behaviour(document)
        self.seed = (document.get("run") or {}).get("seed", 0)
        self.epochs = (document.get("optimiser") or {}).get("epochs", 10)
        self.attempt = int(os.environ.get("NML_ATTEMPT", "x.1").rpartition(".")[2])
        self.asked = False
        self.lock = (path / ".lock").open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            fail(5, "infra", "another process is training there")
        for folder in ("checkpoints", "embeddings", "figures"):
            (path / folder).mkdir(exist_ok=True)
        (path / "spec.json").write_text(json.dumps(document))

    def record(self, kind: str, **fields: Any) -> None:
        event = {"type": kind, "time": round(time.time(), 3), **fields}
        with (self.path / "events.jsonl").open("a") as file:
            file.write(json.dumps(event) + "\n")

    def rewind(self, epoch: int) -> None:
        """Remove a line that was cut off; take back what holds of later epochs, if anything does."""
        file = self.path / "events.jsonl"
        text = file.read_bytes() if file.exists() else b""
        if not text.endswith(b"\n"):
            file.write_bytes(text[: text.rfind(b"\n") + 1])
        reached = 0
        for line in text.splitlines(keepends=True):
            if line.endswith(b"\n"):
                event = json.loads(line)
                at = event.get("epoch", 0)
                reached = at if event["type"] == "rewind" else max(reached, at)
        if reached > epoch:
            self.record("rewind", epoch=epoch)

    def newest(self) -> tuple[int, int]:
        """Epoch and state of the newest checkpoint."""
        for file in sorted((self.path / "checkpoints").glob("epoch-*"), reverse=True):
            found = json.loads(file.read_text())
            return found["epoch"], found["state"]
        return 0, 1

    def checkpoint(self, epoch: int, state: int) -> None:
        target = self.path / "checkpoints" / f"epoch-{epoch:07d}"
        temporary = target.with_name(f".{target.name}.tmp")
        temporary.write_text(json.dumps({"epoch": epoch, "state": state}))
        os.replace(temporary, target)
        for old in sorted((self.path / "checkpoints").glob("epoch-*"))[:-CHECKPOINTS_KEPT]:
            old.unlink()
        self.record("checkpoint", epoch=epoch, path=f"checkpoints/{target.name}")

    def train(self) -> None:
        how = self.behaviour
        epoch, state = self.newest()
        self.track()
        self.rewind(epoch)
        self.record("resume" if epoch else "start", epoch=epoch, spec_hash="x", nodes=3, edges=2, tags={})
        while epoch < self.epochs:
            self.record("step", epoch=epoch + 1, step=1, steps=2, loss=0.5)
            time.sleep(how["seconds"])
            epoch, state = epoch + 1, after(state, self.seed, self.shrunk)
            metrics = {"loss": state / 2**64, "seconds": how["seconds"], "rss_mb": time.time()}
            self.record("epoch", epoch=epoch, metrics=metrics)
            if how.get("print"):
                sys.stdout.write("x" * (how["print"] - 1) + "\n")
                sys.stdout.flush()
            self.misbehave(epoch)
            if self.asked or epoch % how["checkpoint_every"] == 0 or epoch == self.epochs:
                self.checkpoint(epoch, state)
            if self.asked and epoch < self.epochs:
                self.record("cancelled", epoch=epoch)
                fail(6, "cancelled", f"stopped on request after epoch {epoch}")
        self.finish(epoch, state)

    def misbehave(self, epoch: int) -> None:
        how = self.behaviour
        if epoch != how["at"] or self.attempt > how["attempts"]:
            return
        if how.get("family"):
            code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
            subprocess.Popen([sys.executable, "-c", code])
            subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        if how.get("until"):
            while not (self.asked or Path(how["until"]).exists()):
                time.sleep(0.01)
        if how.get("eat"):
            self.eaten = bytearray(how["eat"] * 1_000_000)
        if how.get("fill"):
            with (self.path / "filling").open("wb") as file:
                while True:
                    file.write(bytes(4_096))
                    file.flush()
        if how.get("signal"):
            os.kill(os.getpid(), how["signal"])
        if how.get("exit") is not None:
            kinds = {3: "invalid", 4: "oom"}
            fail(how["exit"], kinds.get(how["exit"], "infra"), how.get("message", "as it was told to"))

    def track(self) -> None:
        if self.behaviour.get("tracked"):
            note = {"key": "k", "run_id": "abc123", "experiment": "standin"}
            (self.path / "tracking.json").write_text(json.dumps(note))

    def finish(self, epoch: int, state: int) -> None:
        for phase in ("export", "evaluate", "figures"):
            self.record("phase", name=phase, epoch=epoch)
        self.export(self.behaviour.get("export", 0))
        (self.path / "figures" / "loss.png").write_bytes(b"png")
        temporary = self.path / ".metrics.json.tmp"
        temporary.write_text(json.dumps({"epoch": epoch, "train": {"loss": state / 2**64}, "eval": None}))
        os.replace(temporary, self.path / "metrics.json")
        self.record("end", epoch=epoch, stopped_early=False)

    def export(self, rows: int) -> None:
        """Vectors, ids 100, 101, … and the manifest that vouches for them, as trainer.export.embeddings has them."""
        if not rows:
            return
        folder = self.path / "embeddings"
        numbers = [value - 0.5 for value in losses(self.seed, rows * DIM)]
        files = {
            "vectors.npy": npy("<f4", (rows, DIM), struct.pack(f"<{rows * DIM}f", *numbers)),
            "ids.npy": npy("<i8", (rows,), struct.pack(f"<{rows}q", *range(100, 100 + rows))),
        }
        for name, content in files.items():
            (folder / name).write_bytes(content)
        manifest = {
            "rows": rows, "dim": DIM, "dtype": "float32", "id_type": "int", "dataset": "standin",
            "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        }  # fmt: skip
        if self.behaviour.get("damage"):
            content = bytearray(files["vectors.npy"])
            content[-3] ^= 1
            (folder / "vectors.npy").write_bytes(content)
        (folder / "manifest.json").write_text(json.dumps(manifest))


def npy(kind: str, shape: tuple[int, ...], content: bytes) -> bytes:
    """A .npy file, without numpy."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + content


def fail(code: int, kind: str, message: str) -> None:
    """Report as trainer.process.outcome does, and leave."""
    text = json.dumps({"kind": kind, "message": message}) + "\n"
    if "NML_OUTCOME_FD" in os.environ:
        os.write(int(os.environ["NML_OUTCOME_FD"]), text.encode())
    sys.exit(code)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("spec", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--memory-limit")
    parser.add_argument("--shrunk", type=int, default=0)
    options = parser.parse_args()
    run = Run(options.out, json.loads(options.spec.read_text()), options.shrunk)

    def ask(*_: object) -> None:
        run.asked = True

    signal.signal(signal.SIGTERM, signal.SIG_IGN if run.behaviour.get("deaf") else ask)
    try:
        run.train()
    except MemoryError:
        fail(4, "oom", "memory ran out")
    except OSError as error:
        fail(5, "infra", f"the disk is full: {error}")


if __name__ == "__main__":
    main()
