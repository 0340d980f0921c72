"""NVXC over a real NVXS session: the byte-exact happy path of the contract, and what closing one does."""

from __future__ import annotations

import pytest

from nvx_ref.errors import SessionFailed, TimedOut
from nvx_ref.nvxc import ExecRequest, ExecResult, MapEntry, NvxcClient
from nvx_ref.session import Record, RecordType
from nvxc_guest import frame, ignore, soon
from session_peers import CAPABILITY, EPOCH, INSTANCE, WAIT, Peer, SocketTransport, data, peer, record

SH = ExecRequest(argv=("/bin/sh", "-c", "echo hi"), timeout_ms=5000)


def happy_path(broker: Peer) -> None:
    assert broker.take() == Record(RecordType.HOST_ATTACH, CAPABILITY)
    broker.sock.sendall(WAIT + record(RecordType.READY, sequence=1))
    replies = [
        [frame(0x81)],
        [frame(0x81, b"\x7d\0\0\0")],
        [frame(0x81)],
        [frame(0x82, b"hi\n"), frame(0x84, b"exit")],
        [frame(0x85)],
    ]
    sequence = 2
    for number, answers in enumerate(replies):
        request = broker.take()
        assert request
        assert (request.instance, request.epoch, request.sequence) == (INSTANCE, EPOCH, number)
        for answer in answers:
            broker.sock.sendall(data(sequence, answer))
            sequence += 1
    assert broker.take() is None


@pytest.mark.spec("620.scope4.e")
@pytest.mark.spec("622.scope4.f")
@pytest.mark.parametrize("kind", [SocketTransport, None])
def test_the_happy_path(kind: type[SocketTransport] | None) -> None:
    output: list[tuple[str, bytes]] = []
    with peer(happy_path, *([kind] if kind else [])) as driver:
        driver.attach(soon())
        nvxc = NvxcClient(driver, request_ids=lambda: 7)
        nvxc.ping(soon())
        assert nvxc.features(soon()) == 0x7D
        assert nvxc.maps([MapEntry("0", "/work")], soon()) == 1
        assert nvxc.exec(SH, lambda *piece: output.append(piece), soon()) == ExecResult("exit", 0)
        nvxc.stop(soon())
    assert output == [("stdout", b"hi\n")]


def test_a_reset_within_an_exec_is_said() -> None:
    def reset(broker: Peer) -> None:
        broker.accept()
        broker.take()
        broker.sock.sendall(data(1, frame(0x82, b"x")) + record(RecordType.RESET, sequence=2))
        assert broker.take() is None

    with peer(reset) as driver:
        driver.attach(soon())
        with pytest.raises(SessionFailed) as caught:
            NvxcClient(driver, request_ids=lambda: 7).exec(SH, ignore, soon())
    assert caught.value.detail == "session-reset"


def test_an_exec_that_is_given_up_drops_the_session() -> None:
    def silent(broker: Peer) -> None:
        broker.accept()
        broker.take()
        assert broker.take() is None

    with peer(silent) as driver:
        driver.attach(soon())
        with pytest.raises(TimedOut):
            NvxcClient(driver, request_ids=lambda: 7).exec(SH, ignore, soon().sooner(0.05))
        # The peer sees the end now, not when the driver goes: that is what ends the program in the guest.
        with pytest.raises(SessionFailed):
            driver.receive(soon())
