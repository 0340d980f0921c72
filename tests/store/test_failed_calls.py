"""A system call that fails once, at any place of a provision or a release: nothing half-done, and nothing undone."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from system import only_linux

only_linux("the calls that fail here are Linux's")

import fcntl

from nvx_ref.errors import NvxError
from nvx_ref.platform import endpoint
from nvx_ref.store.names import LOCK
from sandboxes import CONFIGURATION, NAME, Site, soon

CALLS = ["open", "mkdir", "fsync", "rename", "write", "listdir"]


class Once:
    """Fails the n-th call of a function, and no other.

    Args:
        real: The function.
        number: Which call.
        error: With what.
    """

    def __init__(self, real: Callable[..., object], number: int, error: int) -> None:
        self._real = real
        self._number = number
        self._error = error
        self.count = 0

    def __call__(self, *arguments: object, **named: object) -> object:
        self.count += 1
        if self.count == self._number:
            raise OSError(self._error, os.strerror(self._error))
        return self._real(*arguments, **named)


def provision(site: Site) -> None:
    with site.store.lock_provision(NAME, deadline=soon()) as locked:
        locked.write_configuration(CONFIGURATION)


def failure_of(work: Callable[[], None]) -> NvxError | None:
    try:
        work()
    except NvxError as failure:
        return failure
    return None


@pytest.mark.case("T17")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EMFILE], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", CALLS)
def test_a_provision_that_fails_leaves_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, call: str, error: int
) -> None:
    number = 0
    site.path().parent.mkdir(mode=0o700)
    while True:
        number += 1
        failing = Once(getattr(os, call), number, error)
        with monkeypatch.context() as patched:
            patched.setattr(os, call, failing)
            failure = failure_of(lambda: provision(site))
        if failing.count < number:
            break
        if failure is None:
            # What failed wasn't needed.
            assert site.listing() == {"config.json", LOCK}
            with site.store.lock_removal(NAME, deadline=soon()) as locked:
                locked.recover()
                locked.remove()
        else:
            assert failure.detail == errno.errorcode[error]
            assert not site.path().exists()
    assert number > 1


def test_a_failure_never_takes_a_configuration_that_was_there(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with provisioned.store.lock_provision(NAME, deadline=soon()) as locked:
        # The second one: the file's own content is safe by then, its name isn't.
        monkeypatch.setattr(os, "fsync", Once(os.fsync, 2, errno.EIO))
        with pytest.raises(NvxError):
            locked.write_configuration(b"another\n")
    assert provisioned.path("config.json").read_bytes() in {CONFIGURATION, b"another\n"}


@pytest.mark.parametrize("error", [errno.EIO, errno.EINTR], ids=errno.errorcode.get)
def test_what_was_done_under_the_lock_is_done_although_its_release_meets_errors(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def unlock(fd: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN:
            raise OSError(error, os.strerror(error))
        flock(fd, operation)

    def close(fd: int) -> None:
        # As Linux does it: the number is free whatever the answer is.
        real_close(fd)
        raise OSError(error, os.strerror(error))

    flock, real_close = fcntl.flock, os.close
    locked = site.store.lock_provision(NAME, deadline=soon())
    locked.write_configuration(CONFIGURATION)
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", unlock)
        patched.setattr(os, "close", close)
        locked.close()
    with site.store.lock_existing(NAME, deadline=soon()) as again:
        assert again.read_configuration() == CONFIGURATION


def test_an_interrupted_connect_is_made_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket  # noqa: PLC0415

    interrupted: list[object] = []

    class Interrupted(socket.socket):
        def connect(self, address: object) -> None:
            if not interrupted:
                interrupted.append(address)
                raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
            super().connect(address)

    site.provision()
    path = str(site.path("control.sock"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        monkeypatch.setattr(socket, "socket", Interrupted)
        with endpoint.connect(path, soon(), alive=lambda: True):
            assert interrupted
