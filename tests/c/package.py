"""The package for Python, in an environment that has nothing else.

    LEASEHOLD_LIBRARY=LIBRARY python tests/c/package.py URL
"""

import gc
import sys
import threading
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
    with Client(url, owner="me", lease=5, **slow) as client, Client(url, **slow) as rival:
        with client.lock("k", comment="why") as guard:
            guard.ensure_held()
            guard.ensure_held(2)
            first = guard.token
            assert guard.is_held() and 0 < guard.remaining <= 5 and not guard.wait_loss(0)
            assert rival.try_lock("k") is None
            try:
                rival.lock("k", wait=0.02)
                raise AssertionError("two hold it")
            except Error as error:
                assert (error.code, error.key, error.holder) == (Code.TIMED_OUT, "k", "me"), error
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

        # What nobody has any more is released.
        guard = client.lock("k")
        del guard
        gc.collect()
        with client.lock("k", wait=0):
            pass
        with client.lock("k", shared=True), rival.lock("k", shared=True, wait=0):
            pass

        with client.lock_all(["b", "a"]) as guards:
            guards.ensure_held()
            assert guards.is_held() and len(guards.tokens) == 2
            assert rival.try_lock("a") is None and rival.try_lock("b") is None
        with rival.lock("a", wait=0):
            assert code_of(lambda: client.lock_all(["a", "b"], wait=0)) == Code.TIMED_OUT

        losses(client)
        assert code_of(lambda: client.lock("")) == Code.INVALID_INPUT
        assert code_of(lambda: Client("nosuch:store")) == Code.CONFIG
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
    print("proof: held inside `with`, and a loss is told")


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
