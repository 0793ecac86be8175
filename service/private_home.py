"""What the service keeps is nobody else's: only the user it runs as may read NML_HOME.

Data sets, embeddings, keys' hashes and logs lie there, and every container of docker-compose.yml that reads them runs
as that same user. What a process makes in it gets no rights for others by its umask; the folder itself is closed too,
for a database or a run that an earlier release, or a command line, has made with others.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

UMASK = 0o077
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

log = logging.getLogger("service")


def create_private_files() -> None:
    """From now on, this process and those it starts give no rights to others. For the start of a program."""
    os.umask(UMASK)


def close_home(home: Path) -> None:
    """Make the folder if it is not there, and take everybody else's rights to it.

    Left alone: a folder of another user, such as the mount of a volume in Kubernetes, whose group is ours alone; and
    one with a sticky bit, such as /tmp, which is everybody's on purpose.

    Raises:
        OSError: it cannot be made.
    """
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = home.stat()
    if found.st_uid != os.geteuid() or found.st_mode & stat.S_ISVTX or not found.st_mode & _OTHERS:
        return
    try:
        home.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)
    except OSError as error:  # a read-only disk, say: then readiness has more to tell
        log.warning("the home %s stays open to other users of this machine: %s", home, error.strerror)
