"""Python's own SQLite beside the one in the C library, on one file.

    python3 tests/c/second_sqlite.py LIBRARY URL

where URL is of the form sqlite:PATH. The two do not see each other's locks, and each close of the file ends those that
the other one has. What must not follow: that the log is removed under the library, and that a third process is granted
what is held here.
"""

import os
import sqlite3
import subprocess
import sys

from with_lock import OK, Client, LockError


def is_granted(library, url, key):
    """To another process."""
    code = "import sys; from second_sqlite import *; rival(*sys.argv[1:])"
    run = subprocess.run([sys.executable, "-c", code, library, url, key], cwd=os.path.dirname(os.path.abspath(__file__)),
                         check=True, stdout=subprocess.PIPE, text=True)
    return run.stdout.strip() == "granted"


def rival(library, url, key):
    client = Client(library, url)
    try:
        with client.lock(key, wait_ms=0):
            print("granted")
    except LockError as error:
        assert error.code != OK
        print("refused")
    client.close()


def main(library, url):
    path = url.removeprefix("sqlite:")
    client = Client(library, url)
    log = os.stat(path + "-wal").st_ino
    with client.lock("k") as guard:
        for turn in range(3):
            second = sqlite3.connect(path)
            assert second.execute("SELECT count(*) FROM locks").fetchone()[0] >= 1
            second.close()
            assert os.stat(path + "-wal").st_ino == log, "the second SQLite removed the log"
            assert not is_granted(library, url, "k"), "two hold it"
            assert is_granted(library, url, f"other-{turn}")
            guard.ensure_held()
    client.close()
    assert not os.path.exists(path + "-wal"), "our own last close removes the log"
    second = sqlite3.connect(path)
    assert second.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    print("proof: the log stays, and nobody else is granted what is held")


if __name__ == "__main__":
    main(*sys.argv[1:])
