"""Locks from Python, by the C library and nothing but the standard library.

    python3 tests/c/with_lock.py LIBRARY URL

where LIBRARY is the path of libleasehold.so and URL a store like sqlite:locks.db.
"""

import ctypes
import sys
from contextlib import contextmanager

OK, HELD, LOST = 0, 1, 4
FOR_EVER = 2**64 - 1
VERSION = 1_000  # LEASEHOLD_VERSION_NUMBER: the header that this was written for


class LockError(Exception):
    """What the library said; `code` is one of leasehold_code."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Guard:
    """A lock that is held."""

    def __init__(self, library, handle):
        self._library, self._handle = library, handle

    @property
    def token(self):
        token = ctypes.c_uint64()
        self._library.call("guard_token", self._handle, ctypes.byref(token))
        return token.value

    def is_held(self):
        held = ctypes.c_bool()
        self._library.call("guard_is_held", self._handle, ctypes.byref(held))
        return held.value

    def ensure_held(self):
        self._library.call("guard_ensure_held", self._handle)


class Client:
    """The way to the locks of one store."""

    def __init__(self, path, url):
        self._dll = ctypes.CDLL(path)
        self._handle = self._made("client_connect", ctypes.c_uint32(VERSION), *text(url))

    def call(self, name, *args):
        code = getattr(self._dll, "leasehold_" + name)(*args)
        if code != OK:
            message = ctypes.create_string_buffer(1024)
            self._dll.leasehold_error_message(message, ctypes.c_size_t(len(message)), None)
            raise LockError(code, message.value.decode())

    def _made(self, name, *args):
        handle = ctypes.c_uint64()
        self.call(name, *args, ctypes.byref(handle))
        return handle

    @contextmanager
    def lock(self, key, wait_ms=FOR_EVER):
        """`with client.lock("k"):` holds it inside, and tells at the end if it was lost meanwhile."""
        handle = self._made("client_lock_for", self._handle, *text(key), ctypes.c_uint64(wait_ms))
        try:
            yield Guard(self, handle)
            self.call("guard_release", handle)
        finally:
            self._dll.leasehold_guard_free(handle)

    def close(self):
        self._dll.leasehold_client_close(self._handle)
        self._dll.leasehold_client_free(self._handle)


def text(value):
    data = value.encode()
    return data, ctypes.c_size_t(len(data))


def main(library, url):
    client, rival = Client(library, url), Client(library, url)
    lock = client.lock
    with lock("k") as guard:
        assert guard.is_held()
        first = guard.token
        try:
            with rival.lock("k", wait_ms=0):
                raise AssertionError("two hold it")
        except LockError as error:
            assert error.code != LOST and "k" in str(error), error
    assert not_held(guard)
    with rival.lock("k", wait_ms=0) as guard:
        assert guard.token > first
    try:
        with lock("k"):
            raise KeyError("the work failed")
    except KeyError:
        pass
    with lock("k"):  # what failed has released it
        pass
    rival.close()
    client.close()
    print("proof: held inside `with`, released after it, also by an exception")


def not_held(guard):
    try:
        return not guard.is_held()
    except LockError:  # it was freed
        return True


if __name__ == "__main__":
    main(*sys.argv[1:])
