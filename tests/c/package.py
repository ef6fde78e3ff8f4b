"""The package for Python, in an environment that has nothing else.

    LEASEHOLD_LIBRARY=LIBRARY python tests/c/package.py URL
"""

import copy
import ctypes
import gc
import math
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref

import leasehold
from leasehold import Client, Code, Error, Loss, Reason


def code_of(call):
    try:
        call()
    except Error as error:
        assert str(error)
        return error.code
    return Code.OK


def main(url):
    slow = {"request_timeout": 60, "drop_timeout": 60}  # for a busy machine
    with Client(url, owner="me", lease=60, **slow) as client, Client(url, **slow) as rival:
        with client.lock("k", comment="why") as guard:
            guard.ensure_held()
            guard.ensure_held(2)
            first = guard.token
            assert guard.is_held() and 0 < guard.remaining <= 60 and not guard.wait_loss(0)
            assert rival.try_lock("k") is None
            for wait in (1, 4, 16, 64):  # the store must be asked in it
                try:
                    rival.lock("k", wait=wait)
                    raise AssertionError("two hold it")
                except Error as error:
                    refused = error
                if refused.code != Code.STORE:
                    break
            assert (refused.code, refused.key, refused.holder) == (Code.TIMED_OUT, "k", "me"), refused
        assert not guard.is_held() and code_of(guard.ensure_held) == Code.STALE_HANDLE
        guard.free()
        with rival.try_lock("k") as guard:
            assert guard.token > first
            guard.release()
            assert code_of(guard.release) == Code.CLOSED
        try:
            with client.lock("k"):
                raise KeyError("the work failed")
        except KeyError:
            pass

        # What nobody has any more is released, at once, also after an error of a wait, and with a warning.
        def forgets():
            guard = client.lock("k")
            assert not guard.wait_loss(0.01)
            try:
                client.lock("k", wait=0.01)
            except Error as error:
                # So short a time may be over before the store has answered.
                assert error.code in (Code.TIMED_OUT, Code.STORE), error

        gc.disable()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            forgets()
            again = client.lock("k", wait=0)
        gc.enable()
        assert [warning.category for warning in warned] == [ResourceWarning], warned
        with again:
            pass
        # A second `with` would protect nothing, also inside the first.
        for inside in (False, True):
            guard = client.lock("again")
            try:
                with guard:
                    if inside:
                        with guard:
                            raise AssertionError("it would end under the other")
                with guard:
                    raise AssertionError("it is not held")
            except RuntimeError as error:
                assert "one `with`" in str(error), error
            assert not guard.is_held()
        # What was ended is not warned of.
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            guard, other = client.lock("k"), Client(url)
            guard.release()
            closed = other.lock("l")
            other.close()
            election = client.election("ended")
            election.lead(lambda _: None)
            election.stop()
            del guard, closed, election
            gc.collect()
        with client.lock("k", shared=True), rival.lock("k", shared=True, wait=0):
            pass

        with client.lock_all(["b", "a"]) as guards:
            guards.ensure_held()
            assert guards.is_held() and len(guards.tokens) == 2 and guards.keys == ["a", "b"]
            assert rival.try_lock("a") is None and rival.try_lock("b") is None
        with client.lock("least", hold_at_least=3600), client.lock("done") as guard, client.lock_all(["all"]) as guards:
            guard.hold_at_least(3600)
            guards.hold_at_least(3600)
        for key in ("least", "done", "all"):
            assert rival.try_lock(key) is None
        with rival.lock("a", wait=0):
            assert code_of(lambda: client.lock_all(["a", "b"], wait=0)) == Code.TIMED_OUT

        leases(client)
        leads(client)
        purges(url, client)
        losses(client)
        fenced(url, client, rival)
        interrupted(client, rival)
        waits(client, rival)
        descriptors(client)
        left(url, rival)
        assert code_of(lambda: client.lock("")) == Code.INVALID_INPUT
        assert code_of(lambda: Client("nosuch:store")) == Code.CONFIG
        for wrong in (lambda: client.lock("k", on_loss=7), lambda: client.election("e").lead(None)):
            try:
                wrong()
                raise AssertionError("what can't be called was taken")
            except TypeError as error:
                assert "can't be called" in str(error), error
        for wrong in (-1, float("nan")):
            try:
                client.lock("k", wait=wrong)
                raise AssertionError("a wrong time was taken")
            except ValueError:
                pass
        # A version that the library does not fit.
        ours, leasehold._VERSION_NUMBER = leasehold._VERSION_NUMBER, 999_000_000
        assert code_of(lambda: Client(url)) == Code.CONFIG
        leasehold._VERSION_NUMBER = ours
    assert code_of(lambda: client.lock("k")) == Code.STALE_HANDLE
    wrong_arguments()
    print("proof: held inside `with`, and a loss is told")


def wrong_arguments():
    """What Python itself says of wrong arguments and surroundings."""
    with Client("memory:") as client:
        try:
            client.lock(None)
            raise AssertionError("None is no key")
        except TypeError as error:
            assert "str" in str(error) and "NoneType" in str(error), error
    environment = {**os.environ, "LEASEHOLD_LIBRARY": "/no/such/library.so"}
    program = [sys.executable, "-c", "import leasehold; leasehold.Client('memory:')"]
    said = subprocess.run(program, env=environment, stderr=subprocess.PIPE, text=True)
    assert said.returncode == 1 and "OSError: LEASEHOLD_LIBRARY names no library" in said.stderr, said


def leases(client):
    with client.leases("units") as units:
        token = units.claim("app", "unit/0", 3600)
        try:
            units.claim("app", "unit/1", 3600)
            raise AssertionError("two hold it")
        except Error as error:
            assert (error.code, error.key, error.holder) == (Code.INVALID_LEASE, "app", "unit/0"), repr((error.key, error.holder))
        assert code_of(lambda: units.expire("app")) == Code.INVALID_LEASE
        units.extend("app", "unit/0", 7200)
        found = units.get("app")
        assert found[:3] == ("app", "unit/0", token) and found.remaining > 3600, found
        assert [lease.key for lease in units.list()] == ["app"] and units.get("nobody's") is None
        units.pin("app", "backup")
        assert units.pinned_by("app") == {"backup"}
        units.unpin("app", "backup")
        assert units.pinned_by("app") == set()
        with units.keep("app", "unit/0", 3) as keeper:
            keeper.ensure_held()
            assert keeper.is_held() and keeper.token == token and keeper.remaining > 3600 and not keeper.wait_loss(0)
            units.revoke("app", "unit/0")
            assert keeper.wait_loss(60) and not keeper.is_held() and keeper.remaining == 0
            assert code_of(keeper.ensure_held) == Code.LOST
        # One that nobody has any more extends nothing, which is told.
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            units.claim("forgotten", "unit/0", 3600)
            keeper = units.keep("forgotten", "unit/0", 3600)
            del keeper
            gc.collect()
        assert [(one.category, "keeper" in str(one.message)) for one in warned] == [(ResourceWarning, True)], warned
        units.revoke("forgotten", "unit/0")
        units.claim("short", "unit/0", 0.1)
        # Nothing extends it, though a keeper was made before the call was interrupted.
        kept = interrupt("leases_keep", lambda: units.keep("short", "unit/0", 0.3))
        keepers = [one for one in leasehold._Owned._alive if isinstance(one, leasehold.Keeper)]
        assert all(one._freed.locked() for one in keepers), kept
        while code_of(lambda: units.expire("short")) == Code.INVALID_LEASE:
            threading.Event().wait(0.02)
        assert units.list() == []


def interrupt(function, call):
    """As a signal handler that raises right after the library's answer. Who keeps the exception keeps what the call had."""
    answered = leasehold._call

    def raises(name, *arguments):
        answered(name, *arguments)
        if name == function:
            raise KeyboardInterrupt

    leasehold._call = raises
    try:
        call()
    except KeyboardInterrupt as error:
        return error
    finally:
        leasehold._call = answered
    raise AssertionError("it was not interrupted")


def leads(client):
    terms, won = [], threading.Event()

    def work(token):
        terms.append((token, election.is_leader()))
        won.set()

    with client.election("leader", id="node", lease=60, once=True) as election:
        election.lead(work)
        assert won.wait(60)
        election.wait()
        assert len(terms) == 1 and terms[0][0] > 0 and terms[0][1] and not election.is_leader(), terms
        first = terms[0][0]
        # What it raises is not lost, and keeps nothing that its work had.
        def fails(_):
            _guard = client.lock("of the work")
            try:
                raise KeyError("as a test")
            except KeyError:
                raise ValueError("because of it")

        election.lead(fails)
        for _ in range(2):
            try:
                election.wait()
                raise AssertionError("the work has not failed")
            except RuntimeError as error:
                assert "as a test" in str(error) and "because of it" in str(error), error
        with client.lock("of the work", wait=0):
            pass
        # Of that work, not of one before.
        election.lead(lambda _: None)
        election.wait()
        # Its work lasts until that is seen.
        seen = threading.Event()
        election.lead(lambda _: seen.wait(60))
        assert code_of(lambda: election.lead(work)) == Code.ALREADY_HELD
        seen.set()
        election.stop()
        # What led before is not kept for ever.
        for _ in range(5):
            election.lead(lambda _: None)
            election.stop()
        works = election._works
        assert len(works.by_campaign) == 1, works.by_campaign
        # A refused one changes nothing, and a thread of a campaign that is over finds no work, not that of another.
        terms.clear()
        seen.clear()
        election.lead(lambda token: (terms.append(token), seen.wait(60)))
        campaigns = list(works.by_campaign)
        assert code_of(lambda: election.lead(work)) == Code.ALREADY_HELD and list(works.by_campaign) == campaigns
        works.function(7, campaigns[0] - 1)
        works.function(8, None)
        seen.set()
        election.stop()
        assert 7 not in terms and 8 not in terms and len(terms) <= 1, terms
    with client.lock("leader", wait=60) as guard:
        assert guard.token > first
    won.clear()
    with client.election("leader", once=True) as election:
        interrupt("election_lead", lambda: election.lead(lambda _: won.set()))
        gc.collect()
        assert won.wait(60)


def purges(url, client):
    """A process that died has left a row."""
    program = """
import os, sys, leasehold
client = leasehold.Client(sys.argv[1], request_timeout=60)
guard = client.lock("left", lease=1)
os._exit(0)
"""
    subprocess.run([sys.executable, "-B", "-c", program, url], check=True, timeout=120)

    def left(holders):
        return [holder.key for holder in holders if holder.remaining == 0].count("left")

    while left(client.purge_preview()) == 0:
        threading.Event().wait(0.05)
    assert client.purge_preview(3600) == []
    assert left(client.purge()) == 1 and left(client.purge_preview()) == 0


def fenced(url, client, rival):
    """Another process, which has an SQLite of its own, asserts the lock in its transaction."""
    program = """
import sqlite3, sys
file, sql, key, holder = sys.argv[1:]
database = sqlite3.connect(file, timeout=60, isolation_level=None)
database.execute("BEGIN")
print(database.execute(sql, (key, holder)).fetchall())
database.execute("COMMIT")
"""

    def stands(assertion):
        arguments = [sys.executable, "-c", program, url.split(":", 1)[1], *assertion]
        done = subprocess.run(arguments, check=True, timeout=120, stdout=subprocess.PIPE, text=True)
        return done.stdout.strip() == "[(1,)]"

    with client.lock("fenced") as guard:
        assertion = guard.assertion
        assert assertion.first == "fenced" and stands(assertion)
    assert not stands(assertion)
    with rival.lock("fenced", shared=True) as guard:
        assert not stands(assertion) and stands(guard.assertion)


class Interrupted(Exception):
    pass


def raises(*_):
    raise Interrupted


def interrupted(client, rival):
    """A signal handler that raises ends the wait, and nobody has the lock then."""
    before = signal.signal(signal.SIGALRM, raises)
    locks = (lambda: client.lock("k"), lambda: client.lock_all(["j", "k"]), lambda: client.lock("k", wait=math.inf))
    for lock in locks:
        with rival.lock("k"):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                lock()
                raise AssertionError("it did not wait")
            except Interrupted:
                pass
        for key in ("j", "k"):
            rival.lock(key, wait=60).release()
    signal.signal(signal.SIGALRM, before)
    # Also where nothing waits, and while somebody looks into the exception.
    kept = interrupt("request_try_lock", lambda: client.try_lock("k"))
    rival.lock("k", wait=0).release()
    assert kept.__traceback__ is not None
    # At each line in turn of what asks, waits and frees: at once, by just what the handler raised, and free in the end,
    # also while somebody looks into the exception.
    codes = [function.__code__ for function in (Client._ask, leasehold._interruptibly, leasehold._Owned.free)]
    for lock in (lambda: client.lock("k"), lambda: client.try_lock("k")):
        line, ends = 0, False
        while not ends:
            line, guard, kept, began = line + 1, None, None, time.monotonic()
            try:
                sys.settrace(raises_at(line, codes))
                guard = lock()
                guard.free()
                ends = True
            except Interrupted as error:
                kept = error
            finally:
                sys.settrace(None)
            assert time.monotonic() - began < 9, line
            if guard is not None:
                guard.free()
            rival.lock("k", wait=60).release()
            assert kept is None or freed(kept), line
        assert line > 20, line


def freed(error):
    """Whether nothing is left of what the call that was interrupted made to ask for the lock."""
    library, frame = leasehold._library(), error.__traceback__
    while frame is not None and frame.tb_frame.f_code is not Client._ask.__code__:
        frame = frame.tb_next
    made = frame.tb_frame.f_locals if frame is not None else {}
    gone = (Code.BAD_HANDLE, Code.STALE_HANDLE)
    return all(
        getattr(library, f"leasehold_{kind}_free")(made[kind]) in gone for kind in ("request", "cancel") if kind in made
    )


def raises_at(line, codes):
    """When so many lines of these functions, and of what they call, have begun. Only this thread is traced."""

    def traces(frame, event, _):
        nonlocal line
        if event == "call":
            return traces if frame.f_code in codes or frame.f_back.f_trace is traces else None
        line -= event == "line"
        return traces if line else raises()

    return traces


def waits(client, rival):
    """A signal handler that raises also ends a wait that is for no lock."""
    before = signal.signal(signal.SIGALRM, raises)
    names, election = client.leases("waits"), client.election("k")
    names.claim("n", "unit/0", 3600)
    with rival.lock("k"), client.lock("j") as guard, names.keep("n", "unit/0", 3600) as keeper, names, election:
        election.lead(print)
        bound = threading.Timer(20, election.stop)
        bound.start()
        for wait in (lambda: guard.wait_loss(20), lambda: keeper.wait_loss(20), election.wait):
            began = time.monotonic()
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                wait()
                raise AssertionError("it did not wait")
            except Interrupted:
                assert time.monotonic() - began < 15, "it went on waiting"
        bound.cancel()
    signal.signal(signal.SIGALRM, before)


def descriptors(client):
    """For want of a descriptor, which may be there later. Here, since valgrind takes a limit for no limit of a pair."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with client.lock("k") as guard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            leasehold._call("guard_loss_descriptor", guard._handle, ctypes.byref(ctypes.c_int32()))
            raise AssertionError("it was had")
        except Error as error:
            assert (error.code, error.key, error.retryable) == (Code.STORE, "k", True), error
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def left(url, rival):
    """What is left by an exception, freed early, or held at the end of Python."""
    ended = []

    def waits(client):
        ended.append(code_of(lambda: client.lock("k")))

    try:
        with rival.lock("k"), Client(url) as client:
            guard = client.lock("j")
            waiter = threading.Thread(target=waits, args=(client,))
            waiter.start()
            raise KeyError("the work failed")
    except KeyError:
        pass
    waiter.join(60)
    assert ended in ([Code.CLOSED], [Code.STALE_HANDLE]) and not guard.is_held(), ended
    guard.free()
    with rival.lock("j", wait=math.inf) as guard:
        guard.free()

    # The end of a copy would end the lock.
    with rival.lock("j") as guard:
        for owned in (guard, rival):
            for make in (copy.copy, copy.deepcopy, pickle.dumps):
                try:
                    make(owned)
                    raise AssertionError(f"{make} of {owned}")
                except TypeError as error:
                    assert "can't be copied" in str(error), error
        gc.collect()
        guard.ensure_held()

    # In a pool of processes an error comes back by that.
    try:
        rival.lock("")
    except Error as error:
        same = pickle.loads(pickle.dumps(error))
        parts = [(e.code, str(e), e.key, e.holder, e.retryable) for e in (error, same)]
        assert parts[0] == parts[1] and error.code == Code.INVALID_INPUT, parts

    begin = "import sys, threading, time, leasehold; client = leasehold.Client(sys.argv[1], drop_timeout=60)\n"
    # The loss comes when the interpreter is going.
    dying = """
guard = client.lock("j", max_hold=1.5, on_loss=lambda loss: print("lost"))
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(3)
sys.slow = Slow()
"""
    # Nobody ends it, and its thread never.
    daemon = """
held = threading.Event()
def holds():
    with client.lock("j", on_loss=print):
        held.set()
        threading.Event().wait()
threading.Thread(target=holds, daemon=True).start()
assert held.wait(60)
"""
    # Its guard is gone, and so would be the interpreter. A process that is forked meanwhile has nobody to wait for.
    frees = """
import os, signal, types
ready, freed, going = (threading.Event() for _ in range(3))
leasehold.time = types.SimpleNamespace(sleep=lambda seconds: (going.set(), time.sleep(seconds)))
def lost(_):
    ready.wait(60)
    guard.free()
    freed.set()
    going.wait(60)  # until its end is waited for
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.5)
    print("it ends")
guard = client.lock("j", max_hold=0.1, on_loss=lost)
ready.set()
assert freed.wait(60)
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    # Ctrl-C comes as its clients are closed.
    ctrl_c = """
other = leasehold.Client(sys.argv[1], drop_timeout=60)
guards = client.lock("j"), other.lock("i")
library = leasehold._library()
closes = library.leasehold_client_close
def raises(_):
    library.leasehold_client_close = closes
    raise KeyboardInterrupt
library.leasehold_client_close = raises
"""
    # What was another process's is gone, between a call that failed and its text.
    forked = """
import gc, os
class Node:
    pass
node = Node()
node.me, node.guard = node, client.lock("j")
child = os.fork()
if child == 0:
    own = leasehold.Client("memory:")
    held, said = own.lock("k"), leasehold._said
    del node
    leasehold._said = lambda text: (gc.collect(), said(text))[1]
    try:
        own.lock("k", wait=0)
    except leasehold.Error as error:
        os._exit(0 if error.holder and "fork" not in str(error) else 7)
    os._exit(8)
assert os.waitpid(child, 0)[1] == 0
"""
    # The handler of a signal forks while the main thread waits.
    handler = """
import os, signal
child, parent = 0, os.getpid()
def forks(*_):
    global child
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # where it hangs
signal.signal(signal.SIGALRM, forks)
guard, other = client.lock("j"), leasehold.Client(sys.argv[1])
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    other.lock("j", wait=1)
except leasehold.Error as error:
    if os.getpid() != parent:
        os._exit(0 if error.code == leasehold.Code.FORKED else 7)
    assert error.code in (leasehold.Code.TIMED_OUT, leasehold.Code.STORE), error  # it may have had no answer in time
assert os.waitpid(child, 0)[1] == 0
"""
    # A thread of the parent's has begun to release it.
    releasing = """
import os, signal
entered, seen, answered, parent = threading.Event(), threading.Event(), leasehold._call, os.getpid()
def calls(name, *arguments):
    if name == "guard_release":
        entered.set()
        assert seen.wait(60)
    answered(name, *arguments)
leasehold._call = calls
try:
    with client.lock("j") as guard:
        thread = threading.Thread(target=guard.release)
        thread.start()
        assert entered.wait(60)
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
            seen.set()
            thread.join()
        else:
            signal.alarm(60)
except leasehold.Error as error:
    os._exit(0 if os.getpid() != parent and error.code == leasehold.Code.FORKED else 7)
"""
    # It was released before the fork: nobody has anything to hear, and whoever releases it there is refused.
    released = """
import os, signal
try:
    with client.lock("j") as guard:
        guard.release()
        child = os.fork()
        if child == 0:
            signal.alarm(60)
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
except leasehold.Error as error:
    os._exit(7)
guard, child = client.lock("j"), 0
with guard._releasing:  # as a thread that waits for the store
    thread = threading.Thread(target=guard.release)
    thread.start()
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
if child == 0:
    signal.alarm(60)
    held = threading.Thread(target=guard._releasing.acquire)
    held.start()
    held.join()
    try:
        guard.release()
    except leasehold.Error as error:
        os._exit(0 if error.code == leasehold.Code.FORKED else 7)
    os._exit(8)
thread.join()
"""
    programs = (dying, ""), (daemon, ""), (frees, "it ends\n"), (ctrl_c, ""), (forked, ""), (handler, ""), (releasing, "")
    programs = (*programs, (released, ""))
    for program, said in programs:
        command = [sys.executable, "-B", "-c", begin + program, url]
        done = subprocess.run(command, check=True, timeout=120, stdout=subprocess.PIPE, text=True)
        assert said in done.stdout, program
        for key in ("i", "j"):
            rival.lock(key, wait=0).release()


def losses(client):
    told, freed = threading.Event(), threading.Event()
    seen = []

    def on_loss(loss: Loss):
        seen.append(loss)
        told.set()

    try:
        with client.lock("short", max_hold=0.2, on_loss=on_loss) as guard:
            assert guard.wait_loss(60) and told.wait(60)
        raise AssertionError("the end did not say that it was lost")
    except Error as error:
        assert error.code == Code.LOST, error
    assert len(seen) == 1 and (seen[0].key, seen[0].reason) == ("short", Reason.MAX_HOLD) and seen[0].token > 0, seen

    # A guard that its own callback frees, and the function with it.
    guards = []

    def frees(_loss):
        assert ready.wait(60)
        guards.pop().free()
        gc.collect()
        freed.set()

    try:
        with client.lock("short", max_hold=0.2, on_loss=lambda _: guard.free()) as guard:
            assert guard.wait_loss(60)
            guard.free()
        raise AssertionError("the end did not say that it was lost")
    except Error as error:
        assert error.code == Code.LOST, error

    ready = threading.Event()
    guards.append(client.lock("short", max_hold=0.05, on_loss=frees))
    kept = weakref.ref(frees)
    del frees
    ready.set()
    assert freed.wait(60) and not guards
    for _ in range(100):
        gc.collect()
        if kept() is None:
            return
        threading.Event().wait(0.05)
    raise AssertionError("the function is kept for ever")


if __name__ == "__main__":
    main(*sys.argv[1:])
