"""`make secrets`: gives every name of .env.example that has no value in .env a random one. Never changes a value.

    python3 docker/secrets.py

Standard library only. The file is the owner's alone, and whole or unchanged: a half-written one would cost the
passwords with which the databases were made.
"""

from __future__ import annotations

import base64
import fcntl
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BYTES = 32  # of chance in each value
_NAME = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*")


def main(example: Path = ROOT / ".env.example", file: Path = ROOT / ".env") -> int:
    """Write `file`; says which names were added, never their values."""
    with example.open(encoding="utf-8") as names:
        fcntl.flock(names, fcntl.LOCK_EX)  # of two at once, the second finds what the first has made
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        after, added = completed(before, wanted(names.read()))
        if added:
            _write(file, after)
        else:
            file.chmod(0o600)
    sys.stdout.write(f"{file.name}: added {', '.join(added)}\n" if added else f"{file.name}: nothing is missing\n")
    return 0


def wanted(example: str) -> list[str]:
    """The names that need a value: lines `NAME=` that are no comments."""
    return [found[1] for line in example.splitlines() if (found := _NAME.fullmatch(line))]


def completed(text: str, names: list[str]) -> tuple[str, list[str]]:
    """`text` of an .env file with a value for each of `names`, and the names that had none."""
    lines, added = text.splitlines(), []
    for name in names:
        found = {i: match[2] for i, line in enumerate(lines) if (match := _NAME.fullmatch(line)) and match[1] == name}
        place = max(found, default=None)  # of several, the last one counts
        if place is None:
            lines.append(f"{name}={_token()}")
        elif found[place] in ("", '""', "''"):
            lines[place] = f"{name}={_token()}"
        else:
            continue
        added.append(name)
    return "\n".join(lines) + "\n", added


def _token() -> str:
    """Letters, figures, - and _: good in a URL and a shell alike. (`import secrets` would find this very file.)"""
    return base64.urlsafe_b64encode(os.urandom(BYTES)).rstrip(b"=").decode()


def _write(file: Path, text: str) -> None:
    temporary = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
