"""Distributed locks, by the C library of leasehold and nothing but the standard library.

    import leasehold

    with leasehold.Client("sqlite:locks.db") as client:
        with client.lock("nightly-report") as guard:
            guard.ensure_held()  # right before each step that must not overlap
            print(guard.is_held(), guard.token, guard.remaining)

The library is libleasehold.so (macOS: .dylib) where the system finds it, or the path in LEASEHOLD_LIBRARY. Any thread
may use a client. Do not open a lock file of SQLite with the module sqlite3 in the same process.

An exception that a signal handler raises, as Ctrl-C does, ends a `lock` that waits in the main thread, and leaves no
lock behind; it also ends `wait_loss` and `Election.wait` there, but nothing else that waits: the end of an election's
`with` until its work has returned, of a guard's until its `on_loss` has. When the interpreter exits, all clients are
closed and all guards freed; an `on_loss` or an election's work that runs just then is waited for. SIGTERM ends Python
without that, and the locks stay until their leases end: `signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))` makes
it an exit. A process that `multiprocessing` has forked exits without that, too: leave its locks by `with`.

Only `Client.close` ends a `lock` that waits in another thread. Python waits for its threads before it exits, so put the
client's `with` around whatever starts them. A `lock` blocks its thread: never call it on the thread of an event loop,
where the holder may be another task of that loop, but by `asyncio.to_thread`, or gevent's
`get_hub().threadpool.apply`. An object that has a guard whose `on_loss` is a method of that object is a cycle: its guard
is released only when the garbage collector finds it, so leave such a guard by `with`.
"""

import _thread
import atexit
import ctypes
import ctypes.util
import enum
import functools
import itertools
import math
import os
import sys
import threading
import time
import traceback
import warnings
import weakref
from types import TracebackType
from typing import Callable, Iterable, NamedTuple, Optional, Type, TypeVar

__all__ = [
    "Assertion",
    "Client",
    "Code",
    "Election",
    "Error",
    "Guard",
    "Guards",
    "Holder",
    "Keeper",
    "KeyStatus",
    "Leases",
    "Loss",
    "Reason",
]
__version__ = "0.1.0"

_VERSION_NUMBER = 1_000
_FOR_EVER = 2**64 - 1
# A text that ends in a NUL could not hold one: the length goes along.
_Self = TypeVar("_Self", bound="_Owned")
_Guarding = TypeVar("_Guarding", bound="_Held")
_T = TypeVar("_T")


class Code(enum.IntEnum):
    """What a call says; the names of leasehold_code in the header."""

    OK = 0
    HELD = 1
    ALREADY_HELD = 2
    TIMED_OUT = 3
    LOST = 4
    CANCELLED = 5
    CLOSED = 6
    INVALID_INPUT = 7
    CONFIG = 8
    PERMISSION = 9
    SCHEMA = 10
    STORE = 11
    AMBIGUOUS = 12
    CLOCK_SKEW = 13
    INVALID_LEASE = 14
    NULL_POINTER = 100
    BAD_UTF8 = 101
    BAD_HANDLE = 102
    STALE_HANDLE = 103
    WRONG_HANDLE = 104
    FORKED = 105
    BUFFER_TOO_SMALL = 106
    NOT_FOUND = 107
    TOO_MANY_HANDLES = 108
    PANIC = 109


class Reason(enum.IntEnum):
    """How a lock was lost."""

    NONE = 0
    TAKEN_OVER = 1
    EXPIRED = 2
    RELEASED_BY_OTHER = 3
    MAX_HOLD = 4
    GONE = 5
    HEARTBEAT_DIED = 6


class Loss(NamedTuple):
    """A lock that was held and is not any more. `reason` is a `Reason`, or a number that a later library may have."""

    key: str
    text: str
    token: int
    reason: int
    held_for: float


class Holder(NamedTuple):
    """Who holds a lock or a lease, as it was when somebody looked. For a lease the key is its name, the owner its
    holder, and there is no host. `remaining` is 0 where it had ended, and infinite where it has no end."""

    key: str
    owner: str
    token: int
    remaining: float
    shared: bool = False
    host: Optional[str] = None
    comment: Optional[str] = None


class KeyStatus(NamedTuple):
    """What the store knows of a key: the highest fencing token that was ever issued, and every holder in the record,
    also those whose lease has ended."""

    token: int
    holders: "list[Holder]"


class Assertion(NamedTuple):
    """A statement for a transaction of your own, and its two parameters: see `Guard.assertion`."""

    sql: str
    first: str
    second: str


class Error(Exception):
    """A call that failed. Its text says what went wrong, with which key, on which store.

    `code` is a `Code`, or a number that a later library may have. `key` is that of the lock or the name of the lease that it
    was about, `holder` the owner of the lock or of the lease that was in the way, or the first of several; each is empty
    when it is about none, or none is known. `retryable` says whether the same call may succeed later without any change."""

    def __init__(self, code: int, message: str, key: str, holder: str, retryable: bool) -> None:
        super().__init__(message)
        self.code, self.key, self.holder, self.retryable = _known(Code, code), key, holder, retryable

    def __reduce__(self) -> "tuple[object, ...]":
        # It travels between processes, as from a pool of workers.
        return type(self), (int(self.code), str(self), self.key, self.holder, self.retryable)


class _Handle(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint64)]


class _Loss(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("token", ctypes.c_uint64),
        ("held_for_ms", ctypes.c_uint64),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("text", ctypes.c_void_p),
        ("text_len", ctypes.c_size_t),
        ("reason", ctypes.c_int32),
        ("reserved", ctypes.c_uint32),
    ]


class _Status(ctypes.Structure):
    _fields_ = [
        ("token", ctypes.c_uint64),
        ("created_ms", ctypes.c_uint64),
        ("renewed_ms", ctypes.c_uint64),
        ("leased_until_ms", ctypes.c_uint64),
        ("remaining_ms", ctypes.c_uint64),
        ("mode", ctypes.c_int32),
        ("reserved", ctypes.c_uint32),
    ]


_WORK = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_void_p)
_ON_LOSS = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Loss), ctypes.c_void_p)
_TEXT = (ctypes.c_char_p, ctypes.c_size_t)
_OUT = (ctypes.c_void_p,)
# A buffer for a text.
_BUFFER = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p)
# The arguments of each function that is used here.
_FUNCTIONS = {
    "builder_new": (ctypes.c_uint32, *_TEXT, *_OUT),
    "builder_set_owner": (_Handle, *_TEXT),
    "builder_set_lease": (_Handle, ctypes.c_uint64),
    "builder_set_request_timeout": (_Handle, ctypes.c_uint64),
    "builder_set_drop_timeout": (_Handle, ctypes.c_uint64),
    "builder_connect": (_Handle, *_OUT),
    "builder_free": (_Handle,),
    "client_close": (_Handle,),
    "client_free": (_Handle,),
    "client_create_schema": (_Handle,),
    "client_get": (_Handle, *_TEXT, *_OUT, *_OUT),
    "client_list": (_Handle, _Handle, *_OUT),
    "client_force_release": (_Handle, *_TEXT, *_OUT),
    "client_purge": (_Handle, ctypes.c_uint64, *_OUT),
    "client_purge_preview": (_Handle, ctypes.c_uint64, *_OUT),
    "list_len": (_Handle, *_OUT),
    "list_status": (_Handle, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t),
    "list_text": (_Handle, ctypes.c_size_t, ctypes.c_int32, *_BUFFER),
    "list_free": (_Handle,),
    "leases_new": (_Handle, *_TEXT, *_OUT),
    "leases_claim": (_Handle, *_TEXT, *_TEXT, ctypes.c_uint64, *_OUT),
    "leases_extend": (_Handle, *_TEXT, *_TEXT, ctypes.c_uint64),
    "leases_keep": (_Handle, *_TEXT, *_TEXT, ctypes.c_uint64, *_OUT),
    "leases_expire": (_Handle, *_TEXT),
    "leases_revoke": (_Handle, *_TEXT, *_TEXT),
    "leases_get": (_Handle, *_TEXT, *_OUT),
    "leases_list": (_Handle, *_OUT),
    "leases_pin": (_Handle, *_TEXT, *_TEXT),
    "leases_unpin": (_Handle, *_TEXT, *_TEXT),
    "leases_pinned_by": (_Handle, *_TEXT, *_OUT),
    "leases_free": (_Handle,),
    "keeper_is_held": (_Handle, *_OUT),
    "keeper_ensure_held": (_Handle,),
    "keeper_token": (_Handle, *_OUT),
    "keeper_remaining": (_Handle, *_OUT),
    "keeper_wait_loss": (_Handle, ctypes.c_uint64),
    "keeper_free": (_Handle,),
    "election_new": (_Handle, *_TEXT, *_OUT),
    "election_set_id": (_Handle, *_TEXT),
    "election_set_lease": (_Handle, ctypes.c_uint64),
    "election_set_max_hold": (_Handle, ctypes.c_uint64),
    "election_set_once": (_Handle,),
    "election_lead": (_Handle, _WORK, ctypes.c_void_p),
    "election_is_leader": (_Handle, *_OUT),
    "election_wait": (_Handle,),
    "election_stop": (_Handle,),
    "election_free": (_Handle,),
    "request_new": (_Handle, *_TEXT, *_OUT),
    "request_new_all": (_Handle, *_OUT),
    "request_add_key": (_Handle, *_TEXT),
    "request_set_shared": (_Handle,),
    "request_set_comment": (_Handle, *_TEXT),
    "request_set_lease": (_Handle, ctypes.c_uint64),
    "request_set_max_hold": (_Handle, ctypes.c_uint64),
    "request_set_hold_at_least": (_Handle, ctypes.c_uint64),
    "request_set_wait": (_Handle, ctypes.c_uint64),
    "request_set_on_loss": (_Handle, _ON_LOSS, ctypes.c_void_p),
    "request_set_cancel": (_Handle, _Handle),
    "request_lock": (_Handle, *_OUT),
    "request_try_lock": (_Handle, *_OUT),
    "request_lock_all": (_Handle, *_OUT),
    "request_free": (_Handle,),
    "cancel_new": _OUT,
    "cancel_fire": (_Handle,),
    "cancel_free": (_Handle,),
    "guard_is_held": (_Handle, *_OUT),
    "guard_ensure_held": (_Handle,),
    "guard_ensure_held_for": (_Handle, ctypes.c_uint64),
    "guard_hold_at_least": (_Handle, ctypes.c_uint64),
    "guard_remaining": (_Handle, *_OUT),
    "guard_token": (_Handle, *_OUT),
    "guard_wait_loss": (_Handle, ctypes.c_uint64),
    "guard_assertion": (_Handle, ctypes.c_int32, *_BUFFER),
    "guard_release": (_Handle,),
    "guard_free": (_Handle,),
    "guards_is_held": (_Handle, *_OUT),
    "guards_ensure_held": (_Handle,),
    "guards_hold_at_least": (_Handle, ctypes.c_uint64),
    "guards_token": (_Handle, ctypes.c_size_t, *_OUT),
    "guards_len": (_Handle, *_OUT),
    "guards_key": (_Handle, ctypes.c_size_t, *_BUFFER),
    "guards_release": (_Handle,),
    "guards_free": (_Handle,),
    "error_message": _BUFFER,
    "error_key": _BUFFER,
    "error_holder": _BUFFER,
}


@functools.lru_cache(maxsize=None)
def _library() -> ctypes.CDLL:
    named = os.environ.get("LEASEHOLD_LIBRARY")
    # `find_library` needs programs that a small system lacks: then the loader looks for the plain name.
    plain = "libleasehold.dylib" if sys.platform == "darwin" else "libleasehold.so"
    try:
        library = ctypes.CDLL(named or ctypes.util.find_library("leasehold") or plain)
    except OSError as error:
        if named:
            raise OSError(f"LEASEHOLD_LIBRARY names no library that can be loaded: {error}") from error
        raise ImportError(f"libleasehold is not installed: set LEASEHOLD_LIBRARY to its path ({error})") from error
    for name, arguments in _FUNCTIONS.items():
        try:
            function = getattr(library, "leasehold_" + name)
        except AttributeError as error:
            raise ImportError(f"libleasehold is older than this package: {error}") from error
        function.argtypes, function.restype = arguments, ctypes.c_int32
    library.leasehold_error_is_retryable.restype = ctypes.c_bool
    return library


def _known(kind: Type[enum.IntEnum], number: int) -> int:
    try:
        return kind(number)
    except ValueError:
        return number


def _said(name: str) -> str:
    buffer = ctypes.create_string_buffer(4096)
    getattr(_library(), "leasehold_error_" + name)(buffer, len(buffer), None)
    return buffer.value.decode("utf-8", "replace")


class _Failures(threading.local):
    """How many calls of this thread have failed."""

    number = 0


_failures = _Failures()


def _call(name: str, *arguments: object) -> None:
    before = _failures.number
    code = getattr(_library(), "leasehold_" + name)(*arguments)
    if code != Code.OK:
        retryable = _library().leasehold_error_is_retryable()
        message, key, holder = (_said(text) for text in ("message", "key", "holder"))
        if _failures.number != before:
            # The handler of a signal came between, and what the library says last is about its call.
            message, key, holder, retryable = f"{name} failed: its text is lost to a signal handler's call", "", "", False
        _failures.number += 1
        raise Error(code, message, key, holder, retryable)


def _made(name: str, *arguments: object) -> _Handle:
    handle = _Handle()
    _call(name, *arguments, ctypes.byref(handle))
    return handle


def _got(kind: Callable[[], object], name: str, *arguments: object):  # type: ignore[no-untyped-def]
    value = kind()
    _call(name, *arguments, ctypes.byref(value))  # type: ignore[arg-type]
    return value.value  # type: ignore[attr-defined]


def _text(value: str) -> "tuple[bytes, int]":
    if not isinstance(value, str):
        raise TypeError(f"a text (str) is wanted, as for a key, not {type(value).__name__}")
    data = value.encode()
    return data, len(data)


def _copied(name: str, *arguments: object) -> str:
    """A text that the library copies out."""
    size = ctypes.c_size_t()
    _call(name, *arguments, None, 0, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value + 1)
    _call(name, *arguments, buffer, len(buffer), None)
    return buffer.raw[: size.value].decode("utf-8")


def _found(call: Callable[..., _T], name: str, *arguments: object) -> Optional[_T]:
    """What `call` says; None where there is none."""
    try:
        return call(name, *arguments)
    except Error as error:
        if error.code != Code.NOT_FOUND:
            raise
        return None


def _holders(name: str, *arguments: object) -> "list[Holder]":
    """What a call that gives a list says."""
    handle, holders = _made(name, *arguments), []
    try:
        for at in range(_got(ctypes.c_size_t, "list_len", handle)):
            # A pin has no numbers.
            status = _Status()
            _found(_call, "list_status", handle, at, ctypes.byref(status), ctypes.sizeof(status))
            key, owner = (_copied("list_text", handle, at, text) for text in (0, 2))
            host, comment = (_found(_copied, "list_text", handle, at, text) for text in (3, 4))
            numbers = status.token, _seconds(status.remaining_ms), status.mode == 1
            holders.append(Holder(key, owner, *numbers, host, comment))
    finally:
        _library().leasehold_list_free(handle)
    return holders


def _seconds(ms: int) -> float:
    return math.inf if ms == _FOR_EVER else ms / 1000


def _ms(seconds: Optional[float]) -> int:
    """`None` is for ever, and so is infinity."""
    if seconds is None or seconds == math.inf:
        return _FOR_EVER
    if not seconds >= 0:
        raise ValueError(f"a time is {seconds}, but must be at least 0 seconds")
    return min(round(seconds * 1000), _FOR_EVER)


def _lease_ms(seconds: Optional[float]) -> int:
    """Infinity is no lease here: the package has no locks without end."""
    if seconds == math.inf:
        raise ValueError("a lease is inf, but must end: at most 30 days")
    return _ms(seconds)


class _Owned:
    """A handle that is freed once, by whoever is first: the end of `with`, the garbage collector, or the end of
    Python."""

    _free = ""
    # What is said of one that nobody has any more.
    _forgotten = ""
    # What is to be ended when the interpreter exits.
    _alive: "weakref.WeakSet[_Owned]" = weakref.WeakSet()

    def __init__(self, handle: _Handle) -> None:
        self._handle, self._freed, self._made_in = handle, threading.Lock(), os.getpid()
        _Owned._alive.add(self)

    def __reduce_ex__(self, protocol: object) -> str:
        # A copy would free it, too.
        raise TypeError(f"a {type(self).__name__} can't be copied or pickled")

    def free(self) -> None:
        """Ends it. Later calls say that it was freed; to free it again changes nothing.

        It waits for an `on_loss` of this guard that runs on another thread: hold no lock that `on_loss` takes, here and
        wherever the last reference to a guard may go.
        """
        if self._handle.id != 0 and not self._freed.locked():
            # Twice does no harm, and it can be repeated when the handler of a signal raises before it.
            getattr(_library(), "leasehold_" + self._free)(self._handle)
            self._freed.acquire(blocking=False)

    def __del__(self) -> None:
        if hasattr(self, "_freed"):
            # Not what a guard does in addition: the garbage collector may come between a call that failed and its
            # error.
            if self._made_in != os.getpid():
                return  # the handle is another process's, and a refused call would replace what the last one said
            is_open = False
            try:
                is_open = not self._freed.locked() and self._is_open()
            finally:
                _Owned.free(self)
            if is_open:
                warnings.warn(self._forgotten, ResourceWarning, source=self)

    def _is_open(self) -> bool:
        """Whether its end, when nobody has it any more, ends something that goes on."""
        return False

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            self._end()
        except (Error, RuntimeWarning):
            # Whoever left by an exception hears of that, not of the lock.
            if kind is None:
                raise
        finally:
            self.free()

    def _end(self) -> None:
        """What may fail, at the end of `with`."""


def _at_exit() -> None:
    """Nothing of Python's may be called, and no lock stay renewed, once the interpreter is gone: what the handler of a
    signal raises meanwhile, as Ctrl-C does, waits for that."""
    raised = None
    for _ in range(100):
        try:
            _end_all()
            break
        except BaseException as error:
            raised = error
    if raised is not None:
        raise raised


def _end_all() -> None:
    """Can be interrupted, and called again."""
    while True:
        try:
            alive = list(_Owned._alive)
            break
        except RuntimeError:
            pass  # another thread made one meanwhile
    for client in alive:
        if isinstance(client, Client):
            _library().leasehold_client_close(client._handle)
    for owned in alive:
        owned.free()
    # What is called may have freed its own. In a process that was forked meanwhile nothing of that runs.
    is_called = os.getpid() in list(_Callback._running.values())
    while is_called:
        is_called = os.getpid() in list(_Callback._running.values())
        time.sleep(0.01)  # once more at its end: its thread has to leave Python


atexit.register(_at_exit)


def _check_callable(name: str, function: object) -> None:
    """Else the first to hear of it would be standard error, once it is called."""
    if not callable(function):
        raise TypeError(f"{name} is {function!r}, which can't be called")


class _Callback:
    """Keeps a function of Python's alive for as long as the library may call it."""

    # Those that are called, and in which process: a guard can be freed inside its own callback.
    _running: "dict[object, int]" = {}

    def __init__(self, on_loss: Callable[[Loss], None]) -> None:
        _check_callable("on_loss", on_loss)

        def called(lost: "ctypes._Pointer[_Loss]", _user: Optional[int]) -> None:
            _Callback._running[self] = os.getpid()
            try:
                loss = lost.contents
                key, text = (ctypes.string_at(at, size).decode("utf-8", "replace")
                             for at, size in ((loss.key, loss.key_len), (loss.text, loss.text_len)))
                on_loss(Loss(key, text, loss.token, _known(Reason, loss.reason), loss.held_for_ms / 1000))
            finally:
                _Callback._running.pop(self, None)

        self.function = _ON_LOSS(called)


class _Held(_Owned):
    """What guards of one and of several locks have in common."""

    _is = ""
    _forgotten = "a lock is released whose guard nobody has any more: keep what `lock` returns, as by `with`"
    # By order, so that it is no loss.
    _released = False
    # Another thread frees it.
    _leaves = False
    _lost: Optional[Error] = None

    def __init__(self, callback: Optional[_Callback]) -> None:
        # It is there before its handle, so that whatever interrupts the call that locks leaves nothing behind.
        super().__init__(_Handle())
        # Who releases it has the last one.
        self._callback, self._entered, self._releasing = callback, threading.Lock(), threading.RLock()

    def __enter__(self: _Guarding) -> _Guarding:
        # The end of the one releases it under the other, or has done so.
        if not self._entered.acquire(blocking=False):
            raise RuntimeError("a guard is for one `with`: lock once more for another")
        try:
            _call(self._is + "_ensure_held", self._handle)
        except BaseException:
            self.free()
            raise
        return self

    def _is_open(self) -> bool:
        return self._handle.id != 0 and self.is_held()

    def is_held(self) -> bool:
        """False before the lease can end, and once `max_hold` is over; so before anybody else can be granted the
        lock, unless somebody takes it away by order, as `force_release` does. Asks nobody and does not wait."""
        try:
            return _got(ctypes.c_bool, self._is + "_is_held", self._handle)
        except Error:
            return False

    def free(self) -> None:
        if self._freed.locked():
            return
        try:
            _call(self._is + "_ensure_held", self._handle)
        except Error as error:
            # The end of `with` says so, even if it was freed before.
            if error.code in (Code.LOST, Code.CLOSED):
                self._lost = error.with_traceback(None)
        super().free()

    free.__doc__ = _Owned.free.__doc__

    def release(self) -> None:
        """Releases the lock; raises when it was not held any more. Closing the client counts as a release: after that
        it raises nothing, though others may have had the lock since: only `ensure_held` before it says so, or the end
        of `with` in its place."""
        if self._made_in != os.getpid():
            return _call(self._is + "_release", self._handle)  # which refuses it: a thread of the parent's may have the lock
        with self._releasing:
            # Before the call, so that the end of `with` takes it for no loss, whatever interrupts this.
            self._released = True
            try:
                _call(self._is + "_release", self._handle)
            except Error as error:
                if error.code == Code.LOST:
                    self._released, self._lost = False, error.with_traceback(None)
                raise

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            if kind is None:
                self._end_work()
            elif not (isinstance(error, Error) and error.code in (Code.LOST, Code.CLOSED)):
                # The exception goes on, and may be no failure, as `SystemExit(0)` is none.
                self._warn_of_loss()
        finally:
            if not self._leaves:
                try:
                    self.free()
                except BaseException:
                    _Owned.free(self)
                    raise

    def _warn_of_loss(self) -> None:
        lost = self._lost
        try:
            if not self._released:
                _call(self._is + "_ensure_held", self._handle)
        except Error as error:
            lost = lost or (error if error.code in (Code.LOST, Code.CLOSED) else None)
        if lost is not None:
            try:
                warnings.warn(f"the lock was not held to the end of the work: {lost}", RuntimeWarning, stacklevel=3)
            except RuntimeWarning:
                pass  # by `python -W error`, which must not take the place of what goes on

    def _end_work(self) -> None:
        """Raises only when the lock was not held to this end: for anything else a work that was safe would run again."""
        try:
            # A release would not say that the client was closed, and that others may have had the lock since.
            _call(self._is + "_ensure_held", self._handle)
        except Error as error:
            # What another thread's release hears of a loss, as one in `on_loss`, is said here, too; a thread of the parent's
            # is not waited for.
            if not self._releasing.acquire(blocking=error.code != Code.FORKED):
                raise
            self._releasing.release()
            if self._lost is not None:
                raise self._lost from None
            if error.code == Code.LOST or not (self._released or error.code == Code.STALE_HANDLE):
                raise
            return
        try:
            self.release()
        except Error as error:
            if error.code == Code.LOST:
                raise
            if error.code not in (Code.CLOSED, Code.STALE_HANDLE):  # by another thread, just now
                self._free_later()
                message = f"held to the end of the work, and tried again, since it could not be released: {error}"
                warnings.warn(message, RuntimeWarning, stacklevel=3)

    def _free_later(self) -> None:
        """To free it tries again, for as long as the release has waited already: beside what comes next."""
        try:
            threading.Thread(target=self.free, daemon=False).start()  # waited for when the interpreter exits
            self._leaves = True
        except RuntimeError:
            pass  # none starts any more


class Guard(_Held):
    """A lock that is held: a thread renews it. The end of `with` releases it, and raises when it was not held to that
    end: LOST, or CLOSED when its client was closed meanwhile. A release that the store does not answer is only warned
    of (`RuntimeWarning`), and tried again."""

    _free = "guard_free"
    _is = "guard"

    @property
    def token(self) -> int:
        """The fencing token: greater than that of every earlier grant of the key."""
        return _got(ctypes.c_uint64, "guard_token", self._handle)

    @property
    def remaining(self) -> float:
        """How many seconds the lock stays held if no further renewal succeeds, and no more than `max_hold` allows."""
        return _seconds(_got(ctypes.c_uint64, "guard_remaining", self._handle))

    @property
    def assertion(self) -> Assertion:
        """By which a transaction in the locks' own database asserts that the lock is held, by any driver.

        One row with a true value: it is, and nobody else is granted it before the transaction ends. Anything else: roll
        back. Keep the transaction short: heartbeats may wait for it, in PostgreSQL those of every holder of a shared
        lock. For PostgreSQL; for SQLite only in another process than this, whose sqlite3 is another one than the
        library's. `second` proves who holds the lock: keep it out of logs.
        """
        return Assertion(*(_copied("guard_assertion", self._handle, part) for part in range(3)))

    def ensure_held(self, seconds: float = 0) -> None:
        """Raises when the lock is not held; renews it first if less than `seconds` is left."""
        if seconds == 0:
            _call("guard_ensure_held", self._handle)
        else:
            _call("guard_ensure_held_for", self._handle, _ms(seconds))

    def hold_at_least(self, seconds: float) -> None:
        """From now on nobody else gets the lock within `seconds` from its grant, however soon it is released."""
        _call("guard_hold_at_least", self._handle, _ms(seconds))

    def wait_loss(self, seconds: Optional[float] = None) -> bool:
        """Waits until the lock is lost; False when it is not within `seconds`. If the handler of a signal raises
        meanwhile, a thread waits on for as long: give `seconds` where that happens again and again."""
        return _wait_loss("guard_wait_loss", self._handle, seconds)


class Guards(_Held):
    """All of several locks, sorted by their keys, byte by byte. The end of `with` releases them, and says what that of a
    `Guard` says."""

    _free = "guards_free"
    _is = "guards"

    @property
    def keys(self) -> "list[str]":
        """The keys, in the order of `tokens`, which need not be that in which they were given."""
        return [_copied("guards_key", self._handle, at) for at in self._places()]

    @property
    def tokens(self) -> "list[int]":
        """The fencing token of each of the `keys`."""
        return [_got(ctypes.c_uint64, "guards_token", self._handle, at) for at in self._places()]

    def _places(self) -> range:
        return range(_got(ctypes.c_size_t, "guards_len", self._handle))

    def ensure_held(self) -> None:
        """Raises when one of them is not held."""
        _call("guards_ensure_held", self._handle)

    def hold_at_least(self, seconds: float) -> None:
        """`Guard.hold_at_least` for all of them."""
        _call("guards_hold_at_least", self._handle, _ms(seconds))


class Keeper(_Owned):
    """A lease that a thread extends until the end of `with`, which leaves the lease as it stands."""

    _free = "keeper_free"
    _forgotten = "a lease is extended no more whose keeper nobody has any more: keep what `keep` returns, as by `with`"

    def _is_open(self) -> bool:
        return self._handle.id != 0 and self.is_held()

    @property
    def token(self) -> int:
        """The fencing token of the claim."""
        return _got(ctypes.c_uint64, "keeper_token", self._handle)

    @property
    def remaining(self) -> float:
        """How many seconds the lease stays the holder's if no further extension succeeds."""
        return _seconds(_got(ctypes.c_uint64, "keeper_remaining", self._handle))

    def is_held(self) -> bool:
        """False before somebody could expire the lease; of one that was revoked after the next extension. Asks nobody
        and does not wait."""
        try:
            return _got(ctypes.c_bool, "keeper_is_held", self._handle)
        except Error:
            return False

    def ensure_held(self) -> None:
        """Raises when the lease is not surely the holder's."""
        _call("keeper_ensure_held", self._handle)

    def wait_loss(self, seconds: Optional[float] = None) -> bool:
        """Waits until the lease is lost; False when it is not within `seconds`."""
        return _wait_loss("keeper_wait_loss", self._handle, seconds)


class Leases(_Owned):
    """The leases of a namespace: somebody claims a name for a holder, anyone may extend it for that holder, and it ends
    only when somebody expires it after its time, or revokes it. A call that finds the lease in another state than it
    needs raises INVALID_LEASE."""

    _free = "leases_free"

    def claim(self, name: str, holder: str, seconds: float) -> int:
        """Claims the lease for a holder, for `seconds` at the least. Returns the fencing token."""
        return _got(ctypes.c_uint64, "leases_claim", self._handle, *_text(name), *_text(holder), _lease_ms(seconds))

    def extend(self, name: str, holder: str, seconds: float) -> None:
        """Makes it last for `seconds` from now on; never shortens it."""
        _call("leases_extend", self._handle, *_text(name), *_text(holder), _lease_ms(seconds))

    def keep(self, name: str, holder: str, seconds: float) -> Keeper:
        """Extends it now, and by a thread until the keeper ends."""
        # It is there before its handle, so that whatever interrupts the call leaves nothing behind.
        keeper = Keeper(_Handle())
        place = ctypes.byref(keeper._handle)
        try:
            _call("leases_keep", self._handle, *_text(name), *_text(holder), _lease_ms(seconds), place)
        except BaseException:
            keeper.free()
            raise
        return keeper

    def expire(self, name: str) -> None:
        """Ends the lease after its time, unless somebody pins it."""
        _call("leases_expire", self._handle, *_text(name))

    def revoke(self, name: str, holder: str) -> None:
        """Ends the lease of a holder before its time."""
        _call("leases_revoke", self._handle, *_text(name), *_text(holder))

    def get(self, name: str) -> Optional[Holder]:
        """The lease of a name; None when nobody holds it."""
        found = _holders("leases_get", self._handle, *_text(name))
        return found[0] if found else None

    def list(self) -> "list[Holder]":
        """Every lease that somebody holds, by name."""
        return _holders("leases_list", self._handle)

    def pin(self, name: str, entity: str) -> None:
        """Keeps the name from being expired until `unpin`, on behalf of an entity."""
        _call("leases_pin", self._handle, *_text(name), *_text(entity))

    def unpin(self, name: str, entity: str) -> None:
        """Takes back what `pin` did."""
        _call("leases_unpin", self._handle, *_text(name), *_text(entity))

    def pinned_by(self, name: str) -> "set[str]":
        """Who pins the name."""
        return {pin.owner for pin in _holders("leases_pinned_by", self._handle, *_text(name))}


class _Works:
    """The works of an election, each by the number of its campaign. A thread may still be about to call that of one which
    is over: it finds none."""

    def __init__(self) -> None:
        self.by_campaign: "dict[int, Callable[[int], None]]" = {}

        def called(token: int, campaign: int) -> None:
            # Kept while it runs, also where the election is gone.
            _Callback._running[self] = os.getpid()
            try:
                work = self.by_campaign.get(campaign)
                if work is not None:
                    work(token)
            finally:
                _Callback._running.pop(self, None)

        self.function = _WORK(called)


class Election(_Owned):
    """A node of an election, of which at most one leads. The end of `with` stops it."""

    _free = "election_free"
    _once = _leads = False
    _forgotten = "an election is stopped that nobody has any more: keep what `election` returns, as by `with`"

    def __init__(self, handle: _Handle) -> None:
        super().__init__(handle)
        # What the work of the last `lead` raised, where it leads only once; and whether it has run.
        self._failed: "list[str]" = []
        self._ran: "list[bool]" = []
        self._works, self._campaigns, self._leading = _Works(), itertools.count(1), threading.RLock()

    def _is_open(self) -> bool:
        # One that leads once may be over.
        return self._leads and not (self._once and self._ran)

    def lead(self, work: Callable[[int], None]) -> None:
        """Starts a thread that campaigns, and calls `work` with the fencing token of the term whenever this node has
        won.

        `work` runs on a thread of the library's, and should return soon after `is_leader` became false: the end waits
        for it. When it returns while this node leads, the node resigns, and campaigns again unless it leads only
        `once`. The same when it raises, which goes to standard error; where it leads only `once`, `wait` raises, too.
        """
        _check_callable("work", work)
        failed: "list[str]" = []
        ran: "list[bool]" = []
        is_once = self._once

        def works(token: int) -> None:
            try:
                work(token)
            except BaseException as error:
                if is_once:
                    # Not itself, whose frames may have guards, as may those of what was raised before it.
                    failed.append("".join(traceback.format_exception(type(error), error, error.__traceback__)))
                raise
            finally:
                ran.append(True)

        if self._made_in != os.getpid():
            return _call("election_lead", self._handle, self._works.function, None)  # the same
        with self._leading:
            campaign = next(self._campaigns)
            # Before the call, so that a signal whose handler raises leaves no campaign without its work.
            self._works.by_campaign[campaign] = works
            try:
                _call("election_lead", self._handle, self._works.function, campaign)
            except Error:
                self._works.by_campaign.pop(campaign, None)
                raise
            self._failed, self._ran, self._leads = failed, ran, True
            # The campaigns before are over, else it was refused.
            for before in [number for number in self._works.by_campaign if number < campaign]:
                self._works.by_campaign.pop(before, None)

    def is_leader(self) -> bool:
        """False before another node can win, unless somebody takes the lock away. Asks nobody and does not wait."""
        try:
            return _got(ctypes.c_bool, "election_is_leader", self._handle)
        except Error:
            return False

    def wait(self) -> None:
        """Waits until the thread of `lead` is over. Of one that leads only `once` it raises a `RuntimeError` when the work
        has raised something, with the text of that."""
        _interruptibly(functools.partial(_call, "election_wait", self._handle))
        self._leads = False
        if self._failed:
            raise RuntimeError("the leader's work failed: " + self._failed[0])

    def stop(self) -> None:
        """Ends the campaign, and resigns, so that the next node need not wait for the lease's end. TIMED_OUT when the
        work does not return within the drop timeout: the lock is not released then, and ends with its lease."""
        self._leads = False
        try:
            _call("election_stop", self._handle)
        except Error as error:
            # The term was over before, which is what was to be.
            if error.code != Code.LOST:
                raise


def _wait_loss(name: str, handle: _Handle, seconds: Optional[float]) -> bool:
    wait = functools.partial(_call, name, handle, _ms(seconds))
    try:
        if seconds == 0:
            wait()
        else:
            _interruptibly(wait)
    except Error as error:
        if error.code != Code.TIMED_OUT:
            raise
        return False
    return True


# What the main thread waits for, each with what comes of it.
_waiting: "list[tuple[threading.Lock, list[Optional[BaseException]]]]" = []


def _end_waits_in_child() -> None:
    """The handler of a signal has forked: the thread that makes the call is the parent's."""
    for done, outcome in _waiting:
        if not outcome:
            outcome.append(Error(Code.FORKED, "the process that waited has forked: this is the child", "", "", False))
        try:
            done.release()
        except RuntimeError:
            pass  # it was about to be seen


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_waits_in_child)


def _interruptibly(call: Callable[[], None], cancel: Optional[_Handle] = None, guard: Optional[_Held] = None) -> None:
    """Waits for `call`. The main thread has another one make it: only so it hears of signals meanwhile. What a handler
    raises then fires `cancel` and frees the guard; a call that has none is left to its end, and must not keep its
    object.
    """
    if threading.current_thread() is not threading.main_thread():
        call()
        return
    # Nothing of `threading` that is written in Python: what a handler raises inside would leave it in any state.
    begun, done, outcome = threading.Lock(), threading.Lock(), []  # type: ignore[var-annotated]
    is_wanted = True
    done.acquire()

    def run() -> None:
        if not begun.acquire(blocking=False):
            return
        try:
            call()
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)
        done.release()
        if guard is not None and not is_wanted:
            guard.free()

    pending = (done, outcome)
    try:
        _waiting.append(pending)
        try:
            _thread.start_new_thread(run, ())
        except RuntimeError:
            # It may be what a signal's handler raised once the thread had started.
            if begun.locked():
                raise
            run()  # none starts when the interpreter exits, nor in some subinterpreters
        done.acquire()
    except BaseException:
        is_wanted = False
        has_begun = not begun.acquire(blocking=False)
        if cancel is not None and guard is not None:
            _library().leasehold_cancel_fire(cancel)
            # So that nobody is refused for a lock that nobody has; if it takes longer, the thread frees it.
            if has_begun and not outcome:
                done.acquire(timeout=10)
            guard.free()
        raise
    finally:
        if pending in _waiting:
            _waiting.remove(pending)
    error = outcome.pop()
    try:
        if error is not None:
            raise error
    finally:
        # Else its traceback, in which this frame is, would keep all that the callers have: their guards, too.
        del error


class Client(_Owned):
    """The way to every lock of one store. Times are in seconds; `None` is the library's default."""

    _free = "client_free"

    def __init__(
        self,
        url: str,
        *,
        owner: Optional[str] = None,
        lease: Optional[float] = None,
        request_timeout: Optional[float] = None,
        drop_timeout: Optional[float] = None,
    ) -> None:
        builder = _made("builder_new", _VERSION_NUMBER, *_text(url))
        try:
            if owner is not None:
                _call("builder_set_owner", builder, *_text(owner))
            for name, time in (("lease", lease), ("request_timeout", request_timeout), ("drop_timeout", drop_timeout)):
                if time is not None:
                    _call("builder_set_" + name, builder, (_lease_ms if name == "lease" else _ms)(time))
            super().__init__(_Handle())
            _call("builder_connect", builder, ctypes.byref(self._handle))
        finally:
            _library().leasehold_builder_free(builder)

    def lock(
        self,
        key: str,
        *,
        wait: Optional[float] = None,
        shared: bool = False,
        lease: Optional[float] = None,
        max_hold: Optional[float] = None,
        hold_at_least: Optional[float] = None,
        comment: Optional[str] = None,
        on_loss: Optional[Callable[[Loss], None]] = None,
    ) -> Guard:
        """Waits for the lock, for at most `wait` seconds (`None`: without limit; 0: tries once).

        Keep the guard, as by `with`: one that nobody has any more is released, with a `ResourceWarning`.

        For `hold_at_least` seconds from its grant nobody else gets the lock, however soon it is released.

        `on_loss` is called on a thread of the library's when the lock is lost; never after a release. Whatever frees
        the guard waits for it: see `Guard.free`.
        """
        guard = Guard(None if on_loss is None else _Callback(on_loss))
        begin = functools.partial(_call, "request_new", self._handle, *_text(key))
        self._ask(guard, begin, "request_lock", wait, shared, lease, max_hold, comment, least=hold_at_least)
        return guard

    def lock_all(
        self,
        keys: Iterable[str],
        *,
        wait: Optional[float] = None,
        shared: bool = False,
        lease: Optional[float] = None,
        max_hold: Optional[float] = None,
        comment: Optional[str] = None,
        on_loss: Optional[Callable[[Loss], None]] = None,
    ) -> Guards:
        """All of several locks, or none. Callers with crossed orders never wait for each other."""
        if isinstance(keys, (str, bytes)):
            raise TypeError(f"the keys are one text, {keys!r}, whose letters would be locked: give a list of keys")
        guards = Guards(None if on_loss is None else _Callback(on_loss))
        begin = functools.partial(_call, "request_new_all", self._handle)
        self._ask(guards, begin, "request_lock_all", wait, shared, lease, max_hold, comment, keys)
        return guards

    def try_lock(
        self,
        key: str,
        *,
        shared: bool = False,
        lease: Optional[float] = None,
        max_hold: Optional[float] = None,
        hold_at_least: Optional[float] = None,
        comment: Optional[str] = None,
        on_loss: Optional[Callable[[Loss], None]] = None,
    ) -> Optional[Guard]:
        """`lock` that tries once: None when others hold the lock, or other calls of this client wait for it already.
        TIMED_OUT when the store answered too late for the lock to be held. Keep the guard: `if client.try_lock(key):`
        alone releases it before the work begins."""
        guard = Guard(None if on_loss is None else _Callback(on_loss))
        begin = functools.partial(_call, "request_new", self._handle, *_text(key))
        try:
            self._ask(guard, begin, "request_try_lock", 0, shared, lease, max_hold, comment, least=hold_at_least)
        except Error as error:
            if error.code != Code.HELD:
                raise
            return None
        return guard

    def leases(self, namespace: str) -> Leases:
        """The leases of a namespace."""
        return Leases(_made("leases_new", self._handle, *_text(namespace)))

    def election(
        self,
        name: str,
        *,
        id: Optional[str] = None,
        lease: Optional[float] = None,
        max_hold: Optional[float] = None,
        once: bool = False,
    ) -> Election:
        """A node for the election of this name. Others see it as `id` when it leads (`None`: the client's owner)."""
        election = Election(_made("election_new", self._handle, *_text(name)))
        if id is not None:
            _call("election_set_id", election._handle, *_text(id))
        for option, time in (("lease", lease), ("max_hold", max_hold)):
            if time is not None:
                _call("election_set_" + option, election._handle, (_lease_ms if option == "lease" else _ms)(time))
        if once:
            _call("election_set_once", election._handle)
            election._once = True
        return election

    def purge(self, older_than: float = 0) -> "list[Holder]":
        """Removes holders whose lease ended more than `older_than` seconds ago, and returns them. It also deletes the
        rows of free keys that were last granted 30 days ago."""
        return _holders("client_purge", self._handle, _ms(older_than))

    def purge_preview(self, older_than: float = 0) -> "list[Holder]":
        """The holders that `purge` would remove; writes nothing."""
        return _holders("client_purge_preview", self._handle, _ms(older_than))

    def create_schema(self) -> None:
        """Makes the tables and indexes that the store needs, where they are missing; on some stores that takes minutes.
        In SQLite connecting has made them."""
        _call("client_create_schema", self._handle)

    def get(self, key: str) -> Optional[KeyStatus]:
        """What the store knows of a key; None when nobody ever held it, or its row was deleted. For finding out who
        holds a lock, not for checking before taking it."""
        token = ctypes.c_uint64()
        holders = _found(_holders, "client_get", self._handle, *_text(key), ctypes.byref(token))
        return None if holders is None else KeyStatus(token.value, holders)

    def force_release(self, key: str) -> "list[Holder]":
        """Frees a key, whoever holds it, and returns who did. That breaks the promise that was given to the holder: it
        hears of its loss at its next heartbeat, and until then only the fencing token protects."""
        return _holders("client_force_release", self._handle, *_text(key))

    def close(self) -> None:
        """Ends everything: guards are released, also while somebody works under them, and calls that wait are CLOSED.
        The end of `with` does it, but only warns (`RuntimeWarning`) when the store does not answer."""
        _call("client_close", self._handle)

    def _end(self) -> None:
        """No work was unsafe because a release was not answered, and none should run again for that."""
        try:
            self.close()
        except Error as error:
            if error.code in (Code.CLOSED, Code.FORKED, Code.STALE_HANDLE):
                raise
            warnings.warn(f"left to their leases, since the close failed: {error}", RuntimeWarning, stacklevel=3)

    @staticmethod
    def _ask(
        guard: _Held,
        begin: Callable[[object], None],
        end: str,
        wait: Optional[float],
        shared: bool,
        lease: Optional[float],
        max_hold: Optional[float],
        comment: Optional[str],
        keys: Iterable[str] = (),
        least: Optional[float] = None,
    ) -> None:
        """Gives the guard its handle. `begin` makes the request, and `end` asks for the lock."""
        # There before anything is made, so that whatever interrupts this leaves nothing behind.
        request, cancel = _Handle(), _Handle()

        def frees() -> None:
            # To free what was not made is a failure, whose text would be another call's if this is the handler of a signal.
            if request.id:
                _library().leasehold_request_free(request)
            if cancel.id:
                _library().leasehold_cancel_free(cancel)

        try:
            begin(ctypes.byref(request))
            for key in keys:
                _call("request_add_key", request, *_text(key))
            if shared:
                _call("request_set_shared", request)
            if comment is not None:
                _call("request_set_comment", request, *_text(comment))
            times = (("wait", wait), ("lease", lease), ("max_hold", max_hold), ("hold_at_least", least))
            for name, time in times:
                if time is not None:
                    _call("request_set_" + name, request, (_lease_ms if name == "lease" else _ms)(time))
            if guard._callback is not None:
                _call("request_set_on_loss", request, guard._callback.function, None)
            place = ctypes.byref(guard._handle)
            asks = functools.partial(_call, end, request, place)
            if wait == 0:
                asks()
            else:
                _call("cancel_new", ctypes.byref(cancel))
                _call("request_set_cancel", request, cancel)
                _interruptibly(asks, cancel, guard)
            frees()
        except BaseException:
            # Now, since whoever keeps the exception keeps the guard. Some of it may be free, which does no harm.
            guard.free()
            frees()
            raise

    # The last one: for a type checker the class has no other `list` from here on.
    def list(self) -> "list[Holder]":
        """Every lock in the store, newest first, also those whose lease has ended and that nobody has taken since."""
        return _holders("client_list", self._handle, _Handle())
