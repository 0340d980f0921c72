"""What any OpenVMM-compatible program shows of a session: `--openvmm CMD --artifacts DIR`, and a distro and a scratch.

Every check looks at a layered managed guest through its endpoint alone, so it can be held against a real binary; the
differences are listed together. A real one needs `NVX_CONFORMANCE_DISTRO` (an EROFS with `/bin/sh`) and
`NVX_CONFORMANCE_SCRATCH` (an ext4 of its own). Without the option the bundled stand-in is what runs.
"""

from __future__ import annotations

import os
import select
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fake.machine.client import (
    CANCEL,
    ERROR,
    EXEC,
    EXIT,
    FEATURES,
    MAPS,
    PING,
    READY,
    RECORD,
    STOP,
    STOPPED,
    WAITING,
    Host,
    exec_payload,
    maps_payload,
)
from tests.fake.machine.test_managed import BAD_EXECS, BAD_FRAMES
from tests.fake.machine.test_nvxs import INVALID as BAD_RECORDS
from tests.support.openvmm_stand import CAPABILITY, Stand, made

START_SECONDS = 60
Attach = Callable[[], Host]
INVALID = (ERROR, 22, b"invalid-request")


class Guest:
    """A running program with a layered managed guest."""

    def __init__(self, stand: Stand, argv: list[str]) -> None:
        self._stand = stand
        self._hosts: list[Host] = []
        stand.start(argv)

    def connect(self) -> Host:
        while True:
            try:
                host = Host(str(self._stand.path / "control.sock"), timeout=START_SECONDS)
            except (FileNotFoundError, ConnectionRefusedError):
                assert self._stand.process is not None
                assert self._stand.process.poll() is None, self._stand.log()
                select.select([], [], [], 0.01)  # nothing announces that a socket is served
            else:
                self._hosts.append(host)
                return host

    def attach(self) -> Host:
        host = self.connect()
        host.show(CAPABILITY)
        record = host.record()
        if record.type == WAITING:
            assert record.sequence == 0
            assert record.payload == b""
            waited = record
            record = host.record()
            assert (record.instance, record.sequence) == (waited.instance, 1)
        assert record.type == 7
        assert record.payload == b""
        assert record.instance != bytes(16)
        assert record.epoch
        host.instance, host.epoch, host.received = record.instance, record.epoch, record.sequence + 1
        return host

    def close(self) -> None:
        for host in self._hosts:
            host.close()

    def end(self) -> tuple[int, str | None]:
        outcome = self._stand.finish()
        return outcome.status, outcome.category


# Checks: each takes a guest whose session is free and leaves it so.


def attaches(guest: Guest) -> None:
    first = guest.attach()
    first.close()
    second = guest.attach()
    assert (second.instance, second.epoch) == (first.instance, first.epoch + 1)
    second.close()


def refuses_a_capability(guest: Guest) -> None:
    before = guest.attach()
    before.close()
    host = guest.connect()
    host.show(CAPABILITY[:-1] + b"x")
    assert host.at_end()
    after = guest.attach()
    assert after.epoch == before.epoch + 1
    after.close()


def refuses_another_beginning(guest: Guest) -> None:
    host = guest.connect()
    host.socket.sendall(RECORD.pack(b"NVXS", 1, 5, 0, bytes(range(16)), 1, 0, 1) + b"x")
    assert host.at_end()


def makes_a_second_host_wait(guest: Guest) -> None:
    first, second = guest.attach(), guest.connect()
    second.show(CAPABILITY)
    second.socket.settimeout(0.3)
    with pytest.raises(TimeoutError):
        second.record()
    assert first.call(PING) == (READY, 0, b"")
    first.close()
    second.socket.settimeout(START_SECONDS)
    assert second.record().epoch == first.epoch + 1
    second.close()


def closes_on(raw: bytes) -> Callable[[Guest], None]:
    def check(guest: Guest) -> None:
        host = guest.attach()
        host.socket.sendall(raw)
        assert host.at_end()
        again = guest.attach()
        assert again.epoch == host.epoch + 1
        again.close()

    return check


def answers(kind: int, payload: bytes, expected: tuple[int, int, bytes]) -> Callable[[Guest], None]:
    def check(guest: Guest) -> None:
        host = guest.attach()
        found = host.call(kind, payload)
        assert found == expected, f"{found}, {expected} expected"
        host.close()

    return check


def runs(script: str, expected: tuple[bytes, int, str], **options: object) -> Callable[[Guest], None]:
    def check(guest: Guest) -> None:
        host = guest.attach()
        ended = host.run("/bin/sh", "-c", script, **options)
        found = (ended.stdout, ended.status, ended.category)
        assert ended.kind == EXIT
        assert found == expected, f"{found}, {expected} expected"
        host.close()

    return check


def cuts_output(guest: Guest) -> None:
    host = guest.attach()
    ended = host.run("/bin/sh", "-c", "while :; do echo 0123456789012345678901234567890123456789; done")
    assert len(ended.stdout) <= 1_048_576
    assert (ended.status, ended.category) == (125, "output-limit")
    host.close()


def is_busy_beside_an_exec(guest: Guest) -> None:
    host = guest.attach()
    number = host.ask(EXEC, exec_payload("/bin/sh", "-c", "echo began; sleep 60"))
    assert host.frame().payload == b"began\n"
    for kind, payload in ((PING, b""), (FEATURES, b"x"), (STOP, b""), (STOP, b"x"), (MAPS, b""), (99, b"")):
        assert host.call(kind, payload) == (ERROR, 16, b"busy")
    host.ask(CANCEL, request=number)
    assert host.finish(number)[3:] == (137, "cancelled")
    host.ask(CANCEL, request=number)
    assert host.call(PING) == (READY, 0, b"")
    host.close()


def refuses_to_start(guest: Guest) -> None:
    host = guest.attach()
    for ended in (host.run("/nonexistent"), host.run("/bin/sh", "-c", "echo ran", cwd="/nonexistent")):
        assert (ended.stdout, ended.status, ended.category) == (b"", 125, "exit")
        assert ended.stderr
    host.close()


CHECKS: dict[str, Callable[[Guest], None]] = {
    "attach": attaches,
    "wrong capability": refuses_a_capability,
    "no HOST_ATTACH": refuses_another_beginning,
    "second host": makes_a_second_host_wait,
    **{f"record: {name}": closes_on(raw) for name, raw in BAD_RECORDS.items() if len(raw) < 1000},
    "PING": answers(PING, b"", (READY, 0, b"")),
    "PING with a payload": answers(PING, b"x", INVALID),
    "FEATURES": answers(FEATURES, b"", (READY, 0, bytes.fromhex("15000000"))),
    "FEATURES with a payload": answers(FEATURES, b"x", INVALID),
    "MAPS": answers(MAPS, maps_payload(0, ("0", "/work", False)), INVALID),
    "unknown kind": answers(77, b"", (ERROR, 95, b"unsupported-operation")),
    "a guest's kind": answers(READY, b"", (ERROR, 95, b"unsupported-operation")),
    **{f"EXEC: {name}": answers(EXEC, payload, INVALID) for name, payload in BAD_EXECS.items()},
    "exit status": runs("echo out; exit 7", (b"out\n", 7, "exit")),
    "timeout": runs("sleep 60", (b"", 124, "timeout"), timeout=300),
    "directory": runs("pwd", (b"/tmp\n", 0, "exit"), cwd="/tmp"),
    "default directory": runs("pwd", (b"/\n", 0, "exit")),
    "default PATH": runs("echo $PATH $TERM", (b"/usr/sbin:/usr/bin:/sbin:/bin linux\n", 0, "exit")),
    "own environment": runs("echo $A-$TERM", (b"1-\n", 0, "exit"), environment=["A=1", "TERM="]),
    "environment on top": runs("echo $A $TERM", (b"1 linux\n", 0, "exit"), environment=["A=1"], inherit=True),
    "background child": runs("sleep 60 & echo on", (b"on\n", 0, "exit")),
    "output limit": cuts_output,
    "busy": is_busy_beside_an_exec,
    "program or directory missing": refuses_to_start,
}


@pytest.fixture
def start(
    pytestconfig: pytest.Config, make_erofs: Callable[..., bytes], machines: object
) -> Iterator[Callable[[], Guest]]:
    given = pytestconfig.getoption("--openvmm", default=None)
    kept: list[Iterator[Stand]] = []
    guests: list[Guest] = []

    def begin() -> Guest:
        kept.append(made(still_guest=False))
        stand = next(kept[-1])
        if given:
            argv = real_argv(pytestconfig, stand)
            stand.command = lambda side=None: shlex.split(given)  # type: ignore[method-assign]  # noqa: ARG005
        else:
            (stand.path / "distro").write_bytes(make_erofs())
            scratch = machines.ext4()  # type: ignore[attr-defined]
            layer = "nvx_sandbox=1 nvx_layer=distro,0xd0003000,erofs nvx_scratch=0xd0006000,ext4"
            argv = stand.argv(f'"cmdline={layer}"')
            argv[argv.index(f"scratch:file:{stand.path}/scratch")] = f"scratch:file:{scratch}"
        guests.append(Guest(stand, argv))
        return guests[-1]

    yield begin
    for guest in guests:
        guest.close()
    for generator in kept:
        generator.close()


def real_argv(pytestconfig: pytest.Config, stand: Stand) -> list[str]:
    release = pytestconfig.getoption("--artifacts", default=None)
    distro, scratch = os.environ.get("NVX_CONFORMANCE_DISTRO"), os.environ.get("NVX_CONFORMANCE_SCRATCH")
    if not release or not distro or not scratch:
        pytest.skip("another program needs --artifacts, NVX_CONFORMANCE_DISTRO and NVX_CONFORMANCE_SCRATCH")
    files = Path(release) / "guest"
    argv = stand.argv(f"kernel={files}/vmlinux initrd={files}/initramfs.cpio.gz")
    argv[argv.index(f"distro:file:{stand.path}/distro,ro")] = f"distro:file:{distro},ro"
    argv[argv.index(f"scratch:file:{stand.path}/scratch")] = f"scratch:file:{scratch}"
    return [word.replace("erofs:11111111-1111-1111-1111-111111111111", "erofs") for word in argv]


@pytest.mark.timeout(1800)
def test_a_session_shows_what_the_contract_says(start: Callable[[], Guest]) -> None:
    guest = start()
    differences: list[str] = []
    for name, check in CHECKS.items():
        try:
            check(guest)
        except (AssertionError, EOFError, OSError, pytest.fail.Exception) as error:
            differences.append(f"{name}: {error!r}"[:300])
            guest.close()
    host = guest.attach()
    assert host.call(STOP) == (STOPPED, 0, b"")
    assert host.at_end()
    assert guest.end() == (0, "success")
    assert not differences, f"{len(differences)} of {len(CHECKS)} differ:\n" + "\n".join(differences)


@pytest.mark.timeout(1800)
def test_a_malformed_frame_ends_the_guest_with_125(start: Callable[[], Guest], pytestconfig: pytest.Config) -> None:
    names = list(BAD_FRAMES) if pytestconfig.getoption("--openvmm", default=None) else ["magic"]
    for name in names:
        guest = start()
        guest.attach().data(BAD_FRAMES[name])
        assert guest.end() == (125, "guest-exit"), name


def test_a_difference_is_found(start: Callable[[], Guest]) -> None:
    guest = start()
    with pytest.raises(AssertionError):
        answers(PING, b"", (READY, 1, b""))(guest)
    guest.close()
    host = guest.attach()
    assert host.call(STOP) == (STOPPED, 0, b"")
    assert guest.end() == (0, "success")
