"""Distributed locks, by the C library of leasehold and nothing but the standard library.

    import leasehold

    with leasehold.Client("sqlite:locks.db") as client:
        with client.lock("nightly-report") as guard:
            guard.ensure_held()  # right before each step that must not overlap
            print(guard.token)

The library is libleasehold.so (macOS: .dylib) where the system finds it, or the path in LEASEHOLD_LIBRARY. Any thread
may use a client. Do not open a lock file of SQLite with the module sqlite3 in the same process.

An exception that a signal handler raises, as Ctrl-C does, ends a `lock` that waits in the main thread, and leaves no
lock behind. When the interpreter exits, all clients are closed and all guards freed; an `on_loss` that runs just then is
waited for. A process that `multiprocessing` has forked exits without that: leave its locks by `with`.
"""

import atexit
import ctypes
import ctypes.util
import enum
import functools
import math
import os
import threading
import weakref
from types import TracebackType
from typing import Callable, Iterable, Iterator, NamedTuple, Optional, Type, TypeVar

__all__ = ["Client", "Code", "Error", "Guard", "Guards", "Loss", "Reason"]
__version__ = "0.1.0"

_VERSION_NUMBER = 1_000
_FOR_EVER = 2**64 - 1
# A text that ends in a NUL could not hold one: the length goes along.
_Self = TypeVar("_Self", bound="_Owned")


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


class Error(Exception):
    """A call that failed. `code` is a `Code`, or a number that a later library may have."""

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
    ]


_ON_LOSS = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Loss), ctypes.c_void_p)
_TEXT = (ctypes.c_char_p, ctypes.c_size_t)
_OUT = (ctypes.c_void_p,)
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
    "guard_release": (_Handle,),
    "guard_free": (_Handle,),
    "guards_is_held": (_Handle, *_OUT),
    "guards_ensure_held": (_Handle,),
    "guards_hold_at_least": (_Handle, ctypes.c_uint64),
    "guards_token": (_Handle, ctypes.c_size_t, *_OUT),
    "guards_len": (_Handle, *_OUT),
    "guards_release": (_Handle,),
    "guards_free": (_Handle,),
    "error_message": (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p),
    "error_key": (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p),
    "error_holder": (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p),
}


@functools.lru_cache(maxsize=None)
def _library() -> ctypes.CDLL:
    path = os.environ.get("LEASEHOLD_LIBRARY") or ctypes.util.find_library("leasehold")
    if path is None:
        raise ImportError("libleasehold is not installed: set LEASEHOLD_LIBRARY to its path")
    library = ctypes.CDLL(path)
    for name, arguments in _FUNCTIONS.items():
        function = getattr(library, "leasehold_" + name)
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


def _call(name: str, *arguments: object) -> None:
    code = getattr(_library(), "leasehold_" + name)(*arguments)
    if code != Code.OK:
        retryable = _library().leasehold_error_is_retryable()
        raise Error(code, _said("message"), _said("key"), _said("holder"), retryable)


def _made(name: str, *arguments: object) -> _Handle:
    handle = _Handle()
    _call(name, *arguments, ctypes.byref(handle))
    return handle


def _got(kind: Callable[[], object], name: str, *arguments: object):  # type: ignore[no-untyped-def]
    value = kind()
    _call(name, *arguments, ctypes.byref(value))  # type: ignore[arg-type]
    return value.value  # type: ignore[attr-defined]


def _text(value: str) -> "tuple[bytes, int]":
    data = value.encode()
    return data, len(data)


def _ms(seconds: Optional[float]) -> int:
    """`None` is for ever, and so is infinity."""
    if seconds is None or seconds == math.inf:
        return _FOR_EVER
    if not seconds >= 0:
        raise ValueError(f"a time is {seconds}, but must be at least 0 seconds")
    return min(round(seconds * 1000), _FOR_EVER)


class _Owned:
    """A handle that is freed once, by whoever is first: the end of `with`, the garbage collector, or the end of Python."""

    _free = ""
    # What is to be ended when the interpreter exits.
    _alive: "weakref.WeakSet[_Owned]" = weakref.WeakSet()

    def __init__(self, handle: _Handle) -> None:
        self._handle, self._freed = handle, threading.Lock()
        _Owned._alive.add(self)

    def free(self) -> None:
        """Ends it. Later calls say that it was freed; to free it again changes nothing.

        It waits for an `on_loss` of this guard that runs on another thread: hold no lock that `on_loss` takes, here and
        wherever the last reference to a guard may go.
        """
        if self._handle.id != 0 and self._freed.acquire(blocking=False):
            getattr(_library(), "leasehold_" + self._free)(self._handle)

    def __del__(self) -> None:
        if hasattr(self, "_freed"):
            # Not what a guard does in addition: the garbage collector may come between a call that failed and its error.
            _Owned.free(self)

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
        except Error:
            # Whoever left by an exception hears of that, not of the lock.
            if kind is None:
                raise
        finally:
            self.free()

    def _end(self) -> None:
        """What may fail, at the end of `with`."""


def _at_exit() -> None:
    """Nothing of Python's may be called, and no lock stay renewed, once the interpreter is gone."""
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


atexit.register(_at_exit)


class _Callback:
    """Keeps a function of Python's alive for as long as the library may call it."""

    # Those that are called, or may be: a guard can be freed inside its own callback.
    _running: "set[_Callback]" = set()

    def __init__(self, on_loss: Callable[[Loss], None]) -> None:
        def called(lost: "ctypes._Pointer[_Loss]", _user: Optional[int]) -> None:
            _Callback._running.add(self)
            try:
                loss = lost.contents
                key, text = (ctypes.string_at(at, size).decode("utf-8", "replace")
                             for at, size in ((loss.key, loss.key_len), (loss.text, loss.text_len)))
                on_loss(Loss(key, text, loss.token, _known(Reason, loss.reason), loss.held_for_ms / 1000))
            finally:
                _Callback._running.discard(self)

        self.function = _ON_LOSS(called)


class _Held(_Owned):
    """What guards of one and of several locks have in common."""

    _is = ""
    _released = False
    _lost: Optional[Error] = None

    def __init__(self, callback: Optional[_Callback]) -> None:
        # It is there before its handle, so that whatever interrupts the call that locks leaves nothing behind.
        super().__init__(_Handle())
        self._callback = callback

    def is_held(self) -> bool:
        """False before anybody else can be granted the lock. Asks nobody and does not wait."""
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
            if error.code == Code.LOST:
                self._lost = error.with_traceback(None)
        super().free()

    free.__doc__ = _Owned.free.__doc__

    def release(self) -> None:
        """Releases the lock; raises when it was not held any more."""
        _call(self._is + "_release", self._handle)
        self._released = True

    def _end(self) -> None:
        if self._released:
            return
        try:
            self.release()
        except Error as error:
            if error.code != Code.STALE_HANDLE:
                raise
            if self._lost is not None:
                raise self._lost from None


class Guard(_Held):
    """A lock that is held: a thread renews it. The end of `with` releases it, and raises when it was lost."""

    _free = "guard_free"
    _is = "guard"

    @property
    def token(self) -> int:
        """The fencing token: greater than that of every earlier grant of the key."""
        return _got(ctypes.c_uint64, "guard_token", self._handle)

    @property
    def remaining(self) -> float:
        """How many seconds the lock stays held if no further renewal succeeds."""
        ms = _got(ctypes.c_uint64, "guard_remaining", self._handle)
        return float("inf") if ms == _FOR_EVER else ms / 1000

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
        """Waits until the lock is lost; False when it is not within `seconds`."""
        try:
            _call("guard_wait_loss", self._handle, _ms(seconds))
        except Error as error:
            if error.code != Code.TIMED_OUT:
                raise
            return False
        return True


class Guards(_Held):
    """All of several locks, in the order of their keys. The end of `with` releases them."""

    _free = "guards_free"
    _is = "guards"

    @property
    def tokens(self) -> "list[int]":
        count = _got(ctypes.c_size_t, "guards_len", self._handle)
        return [_got(ctypes.c_uint64, "guards_token", self._handle, at) for at in range(count)]

    def ensure_held(self) -> None:
        """Raises when one of them is not held."""
        _call("guards_ensure_held", self._handle)

    def hold_at_least(self, seconds: float) -> None:
        """`Guard.hold_at_least` for all of them."""
        _call("guards_hold_at_least", self._handle, _ms(seconds))

    def release(self) -> None:
        # What failed is given up in the background.
        self._released = True
        super().release()


def _interruptibly(call: Callable[[], None], cancel: _Handle, guard: _Held) -> None:
    """Waits for `call` on a thread of its own: only so the main thread hears of signals while it waits."""
    done, failed = threading.Event(), []  # type: ignore[var-annotated]
    is_wanted, begun = True, threading.Lock()

    def run() -> None:
        if not begun.acquire(blocking=False):
            return
        try:
            call()
        except BaseException as error:
            failed.append(error)
        done.set()
        if not is_wanted:
            guard.free()

    thread: Optional[threading.Thread] = None
    try:
        try:
            thread = threading.Thread(target=run, name="leasehold-lock", daemon=True)
            thread.start()
        except RuntimeError:
            # It may be what a signal's handler raised while the thread started.
            if not begun.acquire(blocking=False):
                raise
            thread = None  # none starts when the interpreter exits, nor in some subinterpreters
        else:
            done.wait()
    except BaseException:
        is_wanted = False
        _library().leasehold_cancel_fire(cancel)
        # So that nobody is refused for a lock that nobody has; if it takes longer, the thread frees it.
        done.wait(10)
        guard.free()
        raise
    if thread is None:
        call()
    if failed:
        raise failed[0]


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
                    _call("builder_set_" + name, builder, _ms(time))
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

        For `hold_at_least` seconds from its grant nobody else gets the lock, however soon it is released.

        `on_loss` is called on a thread of the library's when the lock is lost; never after a release. Whatever frees the
        guard waits for it: see `Guard.free`.
        """
        guard = Guard(None if on_loss is None else _Callback(on_loss))
        request = _made("request_new", self._handle, *_text(key))
        self._ask(guard, request, "request_lock", wait, shared, lease, max_hold, comment, least=hold_at_least)
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
        names: Iterator[str] = iter(keys)
        guards = Guards(None if on_loss is None else _Callback(on_loss))
        request = _made("request_new_all", self._handle)
        self._ask(guards, request, "request_lock_all", wait, shared, lease, max_hold, comment, names)
        return guards

    def try_lock(self, key: str, **options: object) -> Optional[Guard]:
        """`lock` that tries once: None when others hold the lock."""
        try:
            return self.lock(key, wait=0, **options)  # type: ignore[arg-type]
        except Error as error:
            if error.code not in (Code.HELD, Code.TIMED_OUT):
                raise
            return None

    def close(self) -> None:
        """Ends everything: guards are released, and calls that wait are CLOSED. The end of `with` does it."""
        _call("client_close", self._handle)

    _end = close

    @staticmethod
    def _ask(
        guard: _Held,
        request: _Handle,
        end: str,
        wait: Optional[float],
        shared: bool,
        lease: Optional[float],
        max_hold: Optional[float],
        comment: Optional[str],
        keys: Iterable[str] = (),
        least: Optional[float] = None,
    ) -> None:
        """Gives the guard its handle."""
        cancel = _Handle()
        try:
            for key in keys:
                _call("request_add_key", request, *_text(key))
            if shared:
                _call("request_set_shared", request)
            if comment is not None:
                _call("request_set_comment", request, *_text(comment))
            times = (("wait", wait), ("lease", lease), ("max_hold", max_hold), ("hold_at_least", least))
            for name, time in times:
                if time is not None:
                    _call("request_set_" + name, request, _ms(time))
            if guard._callback is not None:
                _call("request_set_on_loss", request, guard._callback.function, None)
            place = ctypes.byref(guard._handle)
            if wait == 0 or threading.current_thread() is not threading.main_thread():
                _call(end, request, place)
            else:
                _call("cancel_new", ctypes.byref(cancel))
                _call("request_set_cancel", request, cancel)
                _interruptibly(lambda: _call(end, request, place), cancel, guard)
        finally:
            _library().leasehold_request_free(request)
            _library().leasehold_cancel_free(cancel)
