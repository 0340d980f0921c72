"""A guest that answers NVXC requests from a script, in place of a session."""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable

from nvx_ref.deadline import Deadline
from nvx_ref.errors import SessionFailed, TimedOut
from nvx_ref.nvxc import NvxcClient

HEADER = struct.Struct("<4sBBHQiI")
Answers = list[bytes | BaseException]


def frame(
    kind: int,
    payload: bytes = b"",
    *,
    request: int = 7,
    status: int = 0,
    magic: bytes = b"NVXC",
    version: int = 1,
    flags: int = 0,
    length: int | None = None,
) -> bytes:
    size = len(payload) if length is None else length
    return HEADER.pack(magic, version, kind, flags, request, status, size) + payload


class Guest:
    """A channel whose other end answers each request with what `script` returns for its kind and payload.

    With `patient` a receive waits for another thread to say something; otherwise silence is a deadline that passed.
    """

    def __init__(self, script: Callable[[int, bytes], Answers], *, patient: bool = False) -> None:
        self.script = script
        self.patient = patient
        self.sent: list[bytes] = []
        self.queue: deque[bytes | BaseException] = deque()
        self.closed = 0
        self.send_fault: BaseException | None = None
        self.changed = threading.Condition()

    def send(self, payload: bytes, deadline: Deadline) -> None:
        del deadline
        if self.send_fault:
            raise self.send_fault
        self.sent.append(payload)
        self.say(*self.script(payload[5], payload[HEADER.size :]))

    def say(self, *answers: bytes | BaseException) -> None:
        with self.changed:
            self.queue.extend(answers)
            self.changed.notify_all()

    def receive(self, deadline: Deadline) -> bytes:
        with self.changed:
            if self.patient:
                self.changed.wait_for(lambda: self.queue or self.closed, timeout=deadline.remaining())
            if self.queue:
                answer = self.queue.popleft()
            elif self.closed:
                raise SessionFailed("closed", detail="closed")
            else:
                raise TimedOut("nothing came")
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        with self.changed:
            self.closed += 1
            self.changed.notify_all()


def soon() -> Deadline:
    return Deadline.after(120)


def client(*answers: bytes | BaseException) -> tuple[NvxcClient, Guest]:
    """A client whose first request is answered with `answers`, and whose request IDs are all 7."""
    left = [list(answers)]
    guest = Guest(lambda _kind, _payload: left.pop() if left else [])
    return NvxcClient(guest, request_ids=lambda: 7), guest


def ignore(stream: str, data: bytes) -> None:
    del stream, data
