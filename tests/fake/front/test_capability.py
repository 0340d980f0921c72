"""Contract openvmm 3.1: one non-blocking read of standard input to its end."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from tests.support.openvmm_stand import CAPABILITY, Stand


def refused(stand: Stand, text: str) -> None:
    outcome = stand.finish()
    assert outcome.status == 1
    assert outcome.log.splitlines()[-1].startswith("fatal error: control authentication ")
    assert text in outcome.log
    assert outcome.category == "vmm-failure"
    assert not outcome.socket_left


def test_the_capability_is_read_and_shown_to_nobody(stand: Stand) -> None:
    outcome = stand.run(side={})
    assert outcome.status == 0
    assert [event["kind"] for event in stand.evidence("capability")] == ["capability"]
    everything = b"".join(path.read_bytes() for path in stand.path.iterdir() if path.is_file())
    assert CAPABILITY not in everything
    assert CAPABILITY.hex().encode() not in everything


@pytest.mark.parametrize("length", [0, 1, 31])
def test_too_little_with_the_writer_closed(stand: Stand, length: int) -> None:
    stand.start(stand.argv(), stdin=CAPABILITY[:length])
    refused(stand, "UnexpectedEof")


@pytest.mark.parametrize("length", [33, 64, 4096])
def test_too_much(stand: Stand, length: int) -> None:
    stand.start(stand.argv(), stdin=bytes([7]) * length)
    refused(stand, "InvalidData")


def test_zeros_only(stand: Stand) -> None:
    stand.start(stand.argv(), stdin=bytes(32))
    refused(stand, "InvalidData")


@pytest.mark.parametrize("length", [0, 31, 32])
def test_a_writer_that_is_still_open_is_not_waited_for(stand: Stand, length: int) -> None:
    reader, writer = os.pipe()
    os.write(writer, CAPABILITY[:length])
    stand.start(stand.argv(), stdin=reader)
    os.close(reader)
    refused(stand, "TimedOut")
    os.close(writer)


def test_too_much_comes_before_an_open_writer(stand: Stand) -> None:
    reader, writer = os.pipe()
    os.write(writer, bytes([1]) * 33)
    stand.start(stand.argv(), stdin=reader)
    os.close(reader)
    refused(stand, "InvalidData")
    os.close(writer)


@pytest.mark.parametrize("kind", ["file", "null", "socket"])
def test_what_is_no_pipe_is_refused(stand: Stand, kind: str) -> None:
    if kind == "socket":
        ours, theirs = socket.socketpair()
        ours.sendall(CAPABILITY)
        ours.close()
        number = theirs.detach()
    else:
        path = os.devnull if kind == "null" else str(stand.path / "capability")
        if kind == "file":
            (stand.path / "capability").write_bytes(CAPABILITY)
        number = os.open(path, os.O_RDONLY)
    stand.start(stand.argv(), stdin=number)
    os.close(number)
    refused(stand, "InvalidInput")


def test_a_named_pipe_is_a_pipe(stand: Stand) -> None:
    os.mkfifo(stand.path / "fifo")
    reader = os.open(stand.path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(stand.path / "fifo", os.O_WRONLY)
    os.write(writer, CAPABILITY)
    os.close(writer)
    stand.start(stand.argv(), stdin=reader)
    os.close(reader)
    assert stand.finish().status == 0


def test_without_authentication_standard_input_is_left_alone(stand: Stand) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"for somebody else")
    stand.start(
        stand.argv("~microvm-control-auth-stdin ~microvm-control-console ~microvm-lifecycle"), stdin=reader, side={}
    )
    assert stand.finish().status == 0
    assert os.read(reader, 100) == b"for somebody else"
    assert not stand.evidence("capability")
    assert sys.executable
    os.close(reader)
    os.close(writer)
