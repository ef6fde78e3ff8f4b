"""The package for Python: what the end of `with` says, and what looks at locks and takes them away.

    LEASEHOLD_LIBRARY=LIBRARY python tests/c/package_ends.py URL

where URL is of the form sqlite:PATH.
"""

import contextlib
import subprocess
import sys
import threading
import time
import warnings

import leasehold
from leasehold import Client, Code, Error
from package import code_of

# A lease that outlasts the test: what is free was released.
LONG = 3600


def main(url):
    slow = {"request_timeout": 60, "drop_timeout": 60, "lease": LONG}  # for a busy machine
    with Client(url, owner="me", **slow) as client, Client(url, **slow) as rival:
        closes(url, rival)
        by_order(client, rival)
        at_once(client)
        between(client)
        unanswered(url, rival)
        exits(client)
        forgets(client)
        tries(client)
        texts(client)
        looks(client, rival)
        stops(url, client, rival)
    print("proof: the end says what the work must know, and nothing else")


# How several locks and one are asked for.
LOCKS = (lambda client: client.lock("k"), lambda client: client.lock_all(["k", "l"]))


def closes(url, rival):
    """Another thread closes the client while the work goes on, and a rival gets the lock."""

    def works(client, lock, close, then=lambda guard: None):
        with lock(client) as guard:
            thread = threading.Thread(target=close, args=(client,))
            thread.start()
            thread.join()
            with rival.lock("k", wait=60):
                then(guard)

    def leaves(client):
        with client:
            pass

    def fails(_guard):
        raise KeyError("the work failed")

    for lock in LOCKS:
        for close in (Client.close, leaves):
            assert code_of(lambda: works(Client(url), lock, close)) == Code.CLOSED, close
        # Also where the guard is freed before the end.
        assert code_of(lambda: works(Client(url), lock, Client.close, lambda guard: guard.free())) == Code.CLOSED
        # A release that is asked for is one.
        works(Client(url), lock, Client.close, lambda guard: guard.release())
        try:
            works(Client(url), lock, Client.close, fails)
            raise AssertionError("the work's exception is lost")
        except KeyError:
            pass


def by_order(client, rival):
    """Who ends it himself hears of nothing at the end of `with`, unless it was lost by then."""
    for lock in LOCKS:
        for end in ("release", "free"):
            with lock(client) as guard:
                getattr(guard, end)()

    def lost(end):
        with client.lock("k", max_hold=0.05) as guard:
            assert guard.wait_loss(60)
            assert code_of(getattr(guard, end)) in (Code.LOST, Code.OK)

    for end in ("release", "free"):
        assert code_of(lambda: lost(end)) == Code.LOST, end

    def taken(lock):
        with lock(client) as guard:
            rival.force_release("k")
            assert code_of(guard.release) == Code.LOST

    for lock in LOCKS:
        assert code_of(lambda: taken(lock)) == Code.LOST


@contextlib.contextmanager
def answers(then):
    """Calls `then` with the name of each call of the library's that is made, and with what makes it."""
    answered = leasehold._call
    leasehold._call = lambda name, *arguments: then(name, lambda: answered(name, *arguments))
    try:
        yield
    finally:
        leasehold._call = answered


def at_once(client):
    """A lock is lost, and a release that another thread has begun does not know that yet."""

    def works(lock):
        ready, ended, looks = (threading.Event() for _ in range(3))

        def then(name, call):
            try:
                call()
            finally:
                if name.endswith("_release"):
                    ended.set()
                    assert looks.wait(60)
                elif ended.is_set() and name.endswith("_ensure_held"):
                    looks.set()

        with answers(then), lock(lambda _: (ready.wait(60), code_of(guard.release))) as guard:
            ready.set()
            assert ended.wait(60)

    for lock in (lambda lost: client.lock("k", max_hold=0.1, on_loss=lost),
                 lambda lost: client.lock_all(["k", "l"], max_hold=0.1, on_loss=lost)):
        assert code_of(lambda: works(lock)) == Code.LOST

    def fails():
        def then(name, call):
            if name == "guard_release":
                raise Error(Code.STORE, "no answer", "k", "", True)
            call()

        with answers(then), client.lock("k", max_hold=0.1) as guard:
            assert code_of(guard.release) == Code.STORE
            assert guard.wait_loss(60)

    # One that failed is none.
    assert code_of(fails) == Code.LOST


def between(client):
    """The handler of a signal makes a call that fails, or one that does not, before the text of another one is read."""

    def fails():
        assert code_of(lambda: client.lock("")) == Code.INVALID_INPUT

    def succeeds():
        client.try_lock("other").free()

    said = leasehold._said
    for call, key, words in ((fails, "", "a signal handler"), (succeeds, "k", '"k"')):
        calls = []

        def handler(name):
            if not calls:
                calls.append(name)
                call()
            return said(name)

        with client.lock("k"):
            leasehold._said = handler
            try:
                client.lock("k", wait=0)
                raise AssertionError("two hold it")
            except Error as error:
                assert (error.code, error.key) == (Code.TIMED_OUT, key) and words in str(error), (error.key, error)
            finally:
                leasehold._said = said


@contextlib.contextmanager
def busy(url):
    """Another process writes, and does not finish: the store answers nobody who wants to write, too."""
    program = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
database.execute("BEGIN IMMEDIATE")
print("busy", flush=True)
sys.stdin.readline()
database.execute("ROLLBACK")
"""
    command = [sys.executable, "-c", program, url.split(":", 1)[1]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "busy\n"
        try:
            yield
        finally:
            process.communicate("\n", timeout=120)


def unanswered(url, rival):
    """It was held to the end of the work, which is what was asked: the end tells nobody to do it again."""

    def takes(lock, drop_timeout, fails=None):
        """For how long the end takes, and what it warns of."""
        with Client(url, lease=LONG, drop_timeout=drop_timeout) as client, warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            with contextlib.ExitStack() as stack:
                with lock(client):
                    stack.enter_context(busy(url))
                    began = time.monotonic()
                    if fails is not None:
                        raise fails
                took = time.monotonic() - began
            for key in ("k", "l"):
                rival.lock(key, wait=60).release()
            return took, [(warning.category, warning.filename, str(warning.message)) for warning in said]

    for lock in LOCKS:
        for drop_timeout in (3, 6, 12):
            took, said = takes(lock, drop_timeout)
            # Freeing tries again, for as long: beside what comes next.
            assert took < 2 * drop_timeout, took
            assert [warning[0] for warning in said] == [RuntimeWarning], said
            assert said[0][1] == __file__ and "released" in said[0][2], said
            # On a busy machine the answer that says why may come too late for the end of several locks.
            if "no time is left" not in said[0][2]:
                break
        assert "writing" in said[0][2], said
    # Nor does the end of the client, around it, while the store is still silent.
    for lock in LOCKS:
        with warnings.catch_warnings(record=True) as said, contextlib.ExitStack() as stack:
            warnings.simplefilter("always")
            with Client(url, lease=LONG, drop_timeout=0.5) as client, lock(client):
                stack.enter_context(busy(url))
        assert {warning.category for warning in said} == {RuntimeWarning}, said
        assert "left to their leases" in str(said[-1].message), said
        rival.force_release("k")
        rival.force_release("l")
    try:
        takes(LOCKS[0], 0.5, KeyError("the work failed"))
        raise AssertionError("the work's exception is lost")
    except KeyError:
        pass
    # Also as an error, which is what `python -W error` makes of it, nothing stays held.
    with Client(url, lease=LONG, drop_timeout=0.5) as client, warnings.catch_warnings():
        warnings.simplefilter("error")
        with contextlib.ExitStack() as stack:
            try:
                with client.lock("k"):
                    stack.enter_context(busy(url))
                raise AssertionError("it was no error")
            except RuntimeWarning as warning:
                kept = warning
        rival.lock("k", wait=60).release()
        assert kept.__traceback__ is not None


def exits(client):
    """An exception that ends the work of a lost lock may be no failure: the loss is warned of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with client.lock("k", max_hold=1) as guard:
                assert guard.wait_loss(60)
                sys.exit(0)
        except SystemExit:
            pass
        assert [warning.category for warning in said] == [RuntimeWarning], said
        assert "not held to the end" in str(said[0].message) and said[0].filename == __file__, said

        def asks():
            with client.lock("k", max_hold=1) as guard:
                assert guard.wait_loss(60)
                guard.ensure_held()

        assert code_of(asks) == Code.LOST and len(said) == 1, said


def forgets(client):
    """An election that nobody has is stopped: with a warning, unless its one work has run."""
    with warnings.catch_warnings(record=True) as said, client.lock("once"):
        warnings.simplefilter("always")
        client.election("once", once=True).lead(print)
        assert [warning.category for warning in said] == [ResourceWarning], said
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        election = client.election("once", once=True)
        election.lead(lambda _token: None)
        election.wait()
        del election
        assert said == [], said


def tries(client):
    """None means that others hold it, and not that it was granted and given up, for the store was late."""
    answered = leasehold._call

    def is_late(name, *arguments):
        if name in ("request_lock", "request_try_lock"):
            raise Error(Code.TIMED_OUT, "the store answered too late", "k", "", True)
        answered(name, *arguments)

    leasehold._call = is_late
    try:
        assert code_of(lambda: client.try_lock("k")) == Code.TIMED_OUT
    finally:
        leasehold._call = answered
    with client.lock("k"):
        assert client.try_lock("k") is None and client.try_lock("k", shared=True, lease=60, comment="why") is None
    try:
        client.try_lock("k", wait=1)
        raise AssertionError("it does not wait")
    except TypeError:
        pass


def texts(client):
    """One text is no list of keys, though its letters are."""
    for keys in ("nightly", b"nightly"):
        try:
            client.lock_all(keys)
            raise AssertionError("its letters are locked")
        except TypeError as error:
            assert "a list" in str(error), error
    assert client.try_lock("n") is not None


def looks(client, rival):
    """What the store knows, and what takes a lock away."""
    client.create_schema()
    assert client.get("nobody's") is None
    with client.lock("seen", comment="why") as guard, rival.lock("both", shared=True), client.lock("both", shared=True):
        found = rival.get("seen")
        assert found.token == guard.token and len(found.holders) == 1, found
        holder = found.holders[0]
        assert (holder.key, holder.owner, holder.token) == ("seen", "me", guard.token), holder
        assert 0 < holder.remaining <= LONG and not holder.shared and holder.comment == "why" and holder.host, holder
        both = rival.get("both").holders
        assert len(both) == 2 and all(holder.shared and holder.comment is None for holder in both), both
        listed = rival.list()
        assert holder.key in [one.key for one in listed] and [one.key for one in listed].count("both") == 2, listed
    with client.leases("space") as space:
        space.claim("name", "unit/0", LONG)
        lease = space.get("name")
        assert (lease.host, lease.comment, lease.shared) == (None, None, False), lease
        space.revoke("name", "unit/0")
    assert rival.get("seen") == (found.token, []) and "seen" not in [one.key for one in rival.list()]

    def forced():
        with client.lock("seen") as guard:
            took = rival.force_release("seen")
            assert [(one.key, one.token) for one in took] == [("seen", guard.token)], took
            assert rival.force_release("seen") == []
            with rival.lock("seen", wait=0):
                pass

    assert code_of(forced) == Code.LOST


def stops(url, client, rival):
    """A term that was lost is over, as its end was to be."""
    won, lost = threading.Event(), threading.Event()

    def leads(_token):
        won.set()
        lost.wait(60)

    with client.election("leader", lease=15) as election:
        election.lead(leads)
        assert won.wait(60)
        assert [one.key for one in rival.force_release("leader")] == ["leader"]
        while election.is_leader():
            threading.Event().wait(0.02)
        lost.set()
        election.stop()
        election.stop()
    # Whose work does not end.
    won.clear()
    lost.clear()
    with Client(url, lease=LONG, drop_timeout=0.5) as hasty, hasty.election("leader") as election:
        election.lead(leads)
        assert won.wait(60)
        assert code_of(election.stop) == Code.TIMED_OUT
        lost.set()
        election.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
