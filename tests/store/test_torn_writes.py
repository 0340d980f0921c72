"""A crash before each call that changes a file: every record is old or new, and whole, and the next one goes on."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from system import only_linux

only_linux("crashes between calls need a fork; there the crash points of the scenarios are what comes in between")

from nvx_ref.errors import Malformed
from nvx_ref.store import Launch, Recovered
from nvx_ref.store.names import JOURNAL, LOCK, LOG, RUNTIME
from nvx_ref.store.records import FORMAT
from sandboxes import CONFIGURATION, IDENTITY, NAME, Site, ended, soon, write_journal, write_runtime

CALLS = ("open", "write", "fsync", "rename", "unlink", "close", "ftruncate", "rmdir", "mkdir")
CRASHED = 91


def crash_before(number: int, act: Callable[[], None]) -> bool:
    """Run in a forked child that ends before its n-th call; tell whether it got that far."""
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in {0, CRASHED}, status
        return status == CRASHED
    status = 1
    try:
        left = number

        def wrap(real: Callable[..., object]) -> Callable[..., object]:
            def counted(*arguments: object, **options: object) -> object:
                nonlocal left
                left -= 1
                if not left:
                    os._exit(CRASHED)
                return real(*arguments, **options)

            return counted

        for name in CALLS:
            setattr(os, name, wrap(getattr(os, name)))
        act()
        status = 0
    finally:
        os._exit(status)


def sweep(site: Site, prepare: Callable[[], None], act: Callable[[], None], check: Callable[[], None]) -> int:
    number = 1
    prepare()
    while crash_before(number, act):
        check()
        prepare()
        number += 1
    check()
    assert number > 5, "the sweep met no calls"
    assert site.path().parent.exists()
    return number


def clean(site: Site) -> None:
    """The next transition finds nothing that it can't explain, and leaves nothing of the crash."""
    with site.lock() as locked:
        recovery = locked.recover()
        assert recovery.kind in {Recovered.NOTHING, Recovered.EXITED, Recovered.COMPLETED}
        record = locked.runtime()
        if record is not None:
            assert record.identity == IDENTITY
            locked.clear_runtime(record.launch_id)
        locked.begin_launch(IDENTITY).abandon(child_exited=True)
    assert site.listing() == {"config.json", LOCK, LOG}


@pytest.mark.case("T45")
def test_a_configuration_is_old_or_new(provisioned: Site) -> None:
    new = b"[" + b"1," * 5000 + b"1]"

    def write() -> None:
        with provisioned.lock() as locked:
            locked.write_configuration(new)

    def prepare() -> None:
        provisioned.path("config.json").write_bytes(CONFIGURATION)

    def check() -> None:
        with provisioned.lock() as locked:
            assert locked.read_configuration() in {CONFIGURATION, new}
        clean(provisioned)

    sweep(provisioned, prepare, write, check)


@pytest.mark.case("T45")
def test_a_provision_is_whole_or_none(site: Site) -> None:
    def prepare() -> None:
        if site.path().exists():
            with site.store.lock_removal(NAME, deadline=soon()) as locked:
                locked.recover()
                locked.remove()

    def check() -> None:
        if site.path("config.json").exists():
            with site.lock() as locked:
                assert locked.read_configuration() == CONFIGURATION
        prepare()
        site.provision()
        clean(site)

    sweep(site, prepare, site.provision, check)


@pytest.mark.case("T45")
@pytest.mark.spec("620.scope2.a")
def test_a_launch_is_recoverable_at_every_call(provisioned: Site) -> None:
    gone = ended()
    recorded = provisioned.path().parent / "recorded"

    def launch() -> None:
        with provisioned.lock() as locked:
            begun: Launch = locked.begin_launch(IDENTITY)
            begun.record_process(gone)
            recorded.touch()
            begun.commit()

    def check() -> None:
        with provisioned.store.peek(NAME) as reader:
            journal, record = reader.journal(), reader.runtime()
            assert journal is None or (journal.format == FORMAT and journal.process in {None, gone})
            assert record is None or record.process == gone
        # From then on the process is named by one of them, or by both, whatever the crash cut short.
        assert not recorded.exists() or record is not None or (journal is not None and journal.process == gone)
        clean(provisioned)

    assert sweep(provisioned, lambda: recorded.unlink(missing_ok=True), launch, check) > 20
    assert recorded.exists()


@pytest.mark.case("T45")
@pytest.mark.parametrize("left", [JOURNAL, RUNTIME])
def test_a_clearance_keeps_the_record_until_the_last_call(provisioned: Site, left: str) -> None:
    gone = ended()

    def prepare() -> None:
        write_journal(provisioned, gone) if left == JOURNAL else write_runtime(provisioned, gone)
        for name in ("control.sock", "control.capability", ".tmpAb3dE6"):
            provisioned.path(name).touch(0o600)

    def clear() -> None:
        with provisioned.lock() as locked:
            locked.recover()
            locked.clear_runtime("b" * 32)

    def check() -> None:
        if provisioned.path("control.capability").exists() or provisioned.path("control.sock").exists():
            assert provisioned.path(left).exists()
        clean(provisioned)

    sweep(provisioned, prepare, clear, check)


@pytest.mark.case("T19")
@pytest.mark.case("T45")
def test_a_removal_can_be_repeated_from_every_call(site: Site) -> None:
    def prepare() -> None:
        if not site.path().exists():
            site.provision()
        for name in (LOG, "disk.img", "outcome.json", ".tmpAb3dE6"):
            site.path(name).touch(0o600)

    def remove() -> None:
        with site.store.lock_removal(NAME, deadline=soon()) as locked:
            locked.recover()
            locked.remove()

    def check() -> None:
        if site.path().exists():
            remove()
        assert not site.path().exists()

    sweep(site, prepare, remove, check)


def test_a_sweep_that_never_crashes_is_noticed(provisioned: Site) -> None:
    with pytest.raises(AssertionError, match="no calls"):
        sweep(provisioned, lambda: None, lambda: None, lambda: None)


def test_the_sweep_finds_a_record_that_is_written_in_place(provisioned: Site) -> None:
    """Its positive control: a write without a rename is caught half done."""

    def torn() -> None:
        for part in (b'{"format":', b"1}", b"\n", b" ", b" "):
            fd = os.open(provisioned.path(RUNTIME), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(fd, part)
            os.close(fd)

    with pytest.raises(Malformed):
        sweep(provisioned, lambda: None, torn, lambda: clean(provisioned))
