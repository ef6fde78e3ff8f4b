"""Two copies of the library in one process, on one file, as two packages that each bring one.

    python3 tests/c/second_copy.py LIBRARY URL

where URL is of the form sqlite:PATH. SQLite's locks are those of a process, so that one copy does not see what the other
one writes: both would be granted one lock. So whoever comes second is refused, until the first one has closed.
"""

import os
import shutil
import subprocess
import sys
import tempfile

from with_lock import Client, LockError

CONFIG = 8


def refused(library, url):
    try:
        Client(library, url).close()
    except LockError as error:
        return error
    raise AssertionError("a second copy is let in")


def main(library, url):
    with tempfile.TemporaryDirectory() as folder:
        second = os.path.join(folder, "libcopy.so")
        shutil.copy(library, second)
        client = Client(library, url)
        with client.lock("k") as guard:
            for _ in range(3):
                error = refused(second, url)
                assert error.code == CONFIG and "copy of this library" in str(error), (error.code, error)
                guard.ensure_held()
            # Another process, a child among them, is no copy.
            subprocess.run([sys.executable, __file__, "--", library, url], check=True)
            guard.ensure_held()
            # Nor is another client of the same copy.
            Client(library, url).close()
            guard.ensure_held()
        client.close()
        other = Client(second, url)
        with other.lock("k"):
            assert refused(library, url).code == CONFIG
        other.close()
        Client(library, url).close()
    print("proof: a second copy is refused while the first one has the file open")


if __name__ == "__main__":
    if sys.argv[1] == "--":
        Client(*sys.argv[2:]).close()
    else:
        main(*sys.argv[1:])
