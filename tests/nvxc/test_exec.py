"""EXEC against a scripted guest: output, ends, deadlines, interrupts and cancels."""

from __future__ import annotations

import threading

import pytest

from nvx_ref.deadline import Deadline
from nvx_ref.errors import Busy, NvxError, Refused, SessionFailed, TimedOut
from nvx_ref.nvxc import ExecRequest, ExecResult, Kind, NvxcClient
from nvxc_guest import Answers, Guest, client, frame, ignore, soon

SH = ExecRequest(argv=("/bin/sh",))


def run(nvxc: NvxcClient, request: ExecRequest = SH) -> tuple[ExecResult, list[tuple[str, bytes]]]:
    output: list[tuple[str, bytes]] = []
    return nvxc.exec(request, lambda stream, data: output.append((stream, data)), soon()), output


@pytest.mark.spec("620.scope4.e")
def test_output_streams_until_the_end() -> None:
    nvxc, guest = client(
        frame(0x82, b"a"), frame(0x83, b"e"), frame(0x82, b"b" * 32_768), frame(0x84, b"exit", status=3)
    )
    result, output = run(nvxc)
    assert result == ExecResult("exit", 3)
    assert output == [("stdout", b"a"), ("stderr", b"e"), ("stdout", b"b" * 32_768)]
    assert guest.sent == [frame(2, bytes.fromhex("0000000001000000070000002f62696e2f7368"))]


ENDS = [("exit", 0), ("exit", 255), ("signal", 137), ("timeout", 124), ("output-limit", 125), ("failed", 125)]


@pytest.mark.parametrize(("word", "status"), [*ENDS, ("cancelled", 137)])
def test_every_end_is_a_result(word: str, status: int) -> None:
    nvxc, guest = client(frame(0x84, word.encode(), status=status))
    assert run(nvxc)[0] == ExecResult(word, status)
    assert not guest.closed


@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("invalid-request", 22),
        ("busy", 16),
        ("mappings-incomplete", 11),
        ("launch-failed", 125),
        ("containment-failed", 125),
        ("cwd-failed", 2),
        ("unsupported-operation", 95),
    ],
)
def test_a_refused_exec_is_a_result_too(word: str, status: int) -> None:
    nvxc, guest = client(frame(0x83, b"why"), frame(0xFF, word.encode(), status=status))
    assert run(nvxc) == (ExecResult(word, status, refused=True), [("stderr", b"why")])
    assert not guest.closed


@pytest.mark.parametrize("sent", [frame(0x81), frame(0x85), frame(0x84, b"exit", request=8), b""])
def test_a_wrong_answer_to_an_exec_ends_the_session(sent: bytes) -> None:
    nvxc, guest = client(frame(0x82, b"x"), sent)
    with pytest.raises(SessionFailed):
        run(nvxc)
    assert guest.closed


def test_exactly_the_output_limit_is_taken() -> None:
    chunks = [frame(0x82, bytes(32_768))] * 32
    nvxc, _ = client(*chunks, frame(0x84, b"exit"))
    assert sum(len(data) for _, data in run(nvxc)[1]) == 1_048_576


def test_a_guest_that_passes_the_output_limit_is_not_listened_to() -> None:
    nvxc, guest = client(
        *[frame(0x82, bytes(32_768))] * 32, frame(0x83, b"x"), frame(0x84, b"output-limit", status=125)
    )
    with pytest.raises(SessionFailed) as caught:
        run(nvxc)
    assert caught.value.detail == "unexpected-frame"
    assert guest.closed


def test_an_invalid_exec_sends_nothing() -> None:
    nvxc, guest = client()
    with pytest.raises(Refused):
        run(nvxc, ExecRequest(argv=()))
    assert guest.sent == []
    assert not guest.closed


class Watched(Guest):
    """A guest that notes the deadlines it is given."""

    def __init__(self, *answers: bytes) -> None:
        super().__init__(lambda _kind, _payload: list(answers))
        self.deadlines: list[float] = []

    def receive(self, deadline: Deadline) -> bytes:
        self.deadlines.append(deadline.remaining())
        return super().receive(deadline)


@pytest.mark.parametrize(("timeout_ms", "most"), [(0, 10_000.0), (5000, 36.0), (2**32 - 1, 10_000.0)])
def test_a_timeout_of_its_own_bounds_the_wait(timeout_ms: int, most: float) -> None:
    guest = Watched(frame(0x84, b"exit"))
    nvxc = NvxcClient(guest, request_ids=lambda: 7, response_grace=31)
    nvxc.exec(ExecRequest(argv=("/a",), timeout_ms=timeout_ms), ignore, Deadline.after(10_000))
    # A clock of few digits may give back a little more than was put in.
    assert most - 30 < guest.deadlines[0] < most + 1e-6


def test_an_exec_without_an_end_ends_the_session_at_the_deadline() -> None:
    nvxc, guest = client(frame(0x82, b"x"))
    with pytest.raises(TimedOut) as caught:
        run(nvxc)
    assert caught.value.detail == "no-reply"
    assert guest.closed


def test_an_output_callback_that_fails_ends_the_session() -> None:
    nvxc, guest = client(frame(0x82, b"x"), frame(0x84, b"exit"))

    def broken_pipe(stream: str, data: bytes) -> None:
        raise BrokenPipeError(stream, data)

    with pytest.raises(BrokenPipeError):
        nvxc.exec(SH, broken_pipe, soon())
    assert guest.closed


def cancellable(*before: bytes | BaseException, answer: Answers | None = None) -> tuple[NvxcClient, Guest]:
    end: Answers = [frame(0x84, b"cancelled", status=137)] if answer is None else answer
    guest = Guest(lambda kind, _payload: end if kind == Kind.CANCEL else list(before), patient=True)
    return NvxcClient(guest, request_ids=lambda: 7, cancel_grace=20), guest


def test_an_interrupt_cancels_the_program_and_comes_through() -> None:
    nvxc, guest = cancellable(
        frame(0x82, b"x"),
        KeyboardInterrupt(),
        answer=[frame(0x82, b"unwanted"), frame(0x84, b"cancelled", status=137)],
    )
    output: list[bytes] = []
    with pytest.raises(KeyboardInterrupt):
        nvxc.exec(SH, lambda _stream, data: output.append(data), soon())
    assert output == [b"x"]
    assert guest.sent[1:] == [frame(4)]
    assert not guest.closed
    guest.say(frame(0x81))
    nvxc.ping(soon())


def test_an_interrupt_does_not_wait_for_a_guest_that_ignores_it() -> None:
    guest = Guest(lambda kind, _payload: [] if kind == Kind.CANCEL else [KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        NvxcClient(guest, request_ids=lambda: 7).exec(SH, ignore, soon())
    assert guest.sent[1:] == [frame(4)]
    assert guest.closed


def test_an_interrupt_while_the_request_is_sent_ends_the_session() -> None:
    nvxc, guest = client()
    guest.send_fault = KeyboardInterrupt()

    def run_it() -> None:
        nvxc.exec(SH, ignore, soon())

    with pytest.raises(KeyboardInterrupt):
        run_it()
    assert guest.closed


def in_thread(nvxc: NvxcClient) -> tuple[threading.Thread, list[ExecResult | NvxError], threading.Event]:
    results: list[ExecResult | NvxError] = []
    begun = threading.Event()

    def work() -> None:
        try:
            results.append(nvxc.exec(SH, lambda _stream, _data: begun.set(), soon()))
        except NvxError as error:
            results.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, results, begun


def test_another_thread_cancels() -> None:
    nvxc, guest = cancellable(frame(0x82, b"x"))
    thread, results, begun = in_thread(nvxc)
    assert begun.wait(120)
    assert nvxc.cancel(soon()) is True
    thread.join(120)
    assert results == [ExecResult("cancelled", 137)]
    assert guest.sent[1:] == [frame(4)]
    assert nvxc.cancel() is False


def test_a_cancel_that_is_ignored_ends_the_session_in_bounded_time() -> None:
    nvxc, guest = cancellable(frame(0x82, b"x"), answer=[])
    thread, results, begun = in_thread(nvxc)
    assert begun.wait(120)
    with pytest.raises(TimedOut) as caught:
        nvxc.cancel(Deadline.after(0.05))
    assert caught.value.detail == "cancel-ignored"
    thread.join(120)
    assert guest.closed
    assert [type(result) for result in results] == [SessionFailed]


def test_a_cancel_that_cannot_be_sent_ends_the_session() -> None:
    nvxc, guest = cancellable(frame(0x82, b"x"))
    thread, results, begun = in_thread(nvxc)
    assert begun.wait(120)
    guest.send_fault = TimedOut("the guest takes nothing")
    with pytest.raises(TimedOut) as caught:
        nvxc.cancel(soon())
    assert caught.value.detail == "cancel-ignored"
    thread.join(120)
    assert guest.closed
    assert [type(result) for result in results] == [SessionFailed]


def test_a_cancel_that_comes_before_the_request_is_out_follows_it() -> None:
    guest: Guest
    cancels: list[bool] = []

    def script(kind: int, _payload: bytes) -> Answers:
        if kind == Kind.EXEC:
            cancels.append(nvxc.cancel(soon()))
        return [frame(0x84, b"cancelled", status=137)] if kind == Kind.CANCEL else []

    guest = Guest(script)
    nvxc = NvxcClient(guest, request_ids=lambda: 7)
    assert run(nvxc)[0] == ExecResult("cancelled", 137)
    assert cancels == [True]
    assert [sent[5] for sent in guest.sent] == [Kind.EXEC, Kind.CANCEL]


def test_an_output_callback_may_cancel() -> None:
    nvxc, guest = cancellable(frame(0x82, b"x"))
    asks: list[bool] = []

    def asked(stream: str, data: bytes) -> None:
        del stream, data
        asks.append(nvxc.cancel())

    assert nvxc.exec(SH, asked, soon()) == ExecResult("cancelled", 137)
    assert asks == [True]
    assert guest.sent[1:] == [frame(4)]


def test_one_request_at_a_time() -> None:
    nvxc, guest = cancellable(frame(0x82, b"x"))
    thread, results, begun = in_thread(nvxc)
    assert begun.wait(120)
    for call in (lambda: nvxc.ping(soon()), lambda: nvxc.stop(soon()), lambda: run(nvxc)):
        with pytest.raises(Busy) as caught:
            call()
        assert caught.value.detail == "request-outstanding"
    guest.say(frame(0x84, b"exit"))
    thread.join(120)
    assert results == [ExecResult("exit", 0)]
    assert len(guest.sent) == 1


def test_closing_ends_an_exec_in_another_thread() -> None:
    nvxc, _ = cancellable(frame(0x82, b"x"))
    thread, results, begun = in_thread(nvxc)
    assert begun.wait(120)
    nvxc.close()
    thread.join(120)
    assert [type(result) for result in results] == [SessionFailed]
