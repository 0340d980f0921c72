"""The harness's end of the fake's channel: who is there, where it waits, and the lifeline that ends it with us.

Each fake connects to one socket or pipe of the test, says its PID and the test's token, and tells at each pause point
that the side file names that it waits there. Nothing is accepted until somebody looks, and nothing needs a thread: a
closed door is an end of file for every fake, accepted or not.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from harness.deadline import POLL_INTERVAL
from harness.errors import Gone, HarnessError, Late, is_finding
from harness.platform import listen
from harness.sut.protocol import mapping

if TYPE_CHECKING:
    from harness.deadline import Deadline
    from harness.platform.contract import Line
    from harness.prospects import Prospects
    from harness.witness.contract import Host
    from harness.witness.processes import Processes

__tracebackhide__ = is_finding

BACKLOG = 128


class Peer:
    """One fake on the channel.

    Attributes:
        pid: Its number, as it says; the process witness holds it by a pin.
        paused: Where it waits now, or None.
        passed: The points at which it has waited, in order, as ``point#hit``.
    """

    def __init__(self, line: Line) -> None:
        self.line = line
        self._buffer = b""
        self.pid = 0
        self.paused: str | None = None
        self.passed: list[str] = []
        self.gone = False

    def read(self) -> list[dict[str, object]]:
        """Read what there is without waiting."""
        data = self.line.read()
        if data is None:
            return []
        self.gone = not data
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def send(self, message: dict[str, str]) -> None:
        """Send one line; a fake that is gone isn't an error here."""
        try:
            self.line.send(json.dumps(message).encode() + b"\n")
        except ConnectionError:
            self.gone = True

    def close(self) -> None:
        """End the fake's lifeline."""
        self.line.close()


class Channel:
    """All fakes of one test.

    Args:
        path: The socket or pipe to make.
        token: What a fake of this test says.
        processes: The witness that is told of every fake.
        host: Pins what connects.

    Attributes:
        peers: Those that have connected, in order.
        heard: The numbers of those that said hello.
        prospects: Tells whether waiting is of use; None: that isn't known.
    """

    def __init__(self, path: str, *, token: str, processes: Processes, host: Host) -> None:
        self._token = token
        self._processes = processes
        self._host = host
        self._door = listen(path, BACKLOG)
        self.peers: list[Peer] = []
        self.heard: set[int] = set()
        self.prospects: Prospects | None = None

    def pump(self, deadline: Deadline | None = None) -> None:
        """Take what has arrived; with a deadline, wait a moment for something to arrive first."""
        soon = deadline.within(POLL_INTERVAL) if deadline is not None else None
        self._door.wait([peer.line for peer in self.peers if not peer.gone], soon)
        while (line := self._door.accept()) is not None:
            self.peers.append(Peer(line))
        for peer in self.peers:
            if not peer.gone:
                self._take(peer)

    def wait_paused(self, point: str, deadline: Deadline) -> Peer:
        """Wait until a fake waits at a point.

        Raises:
            Gone: None can any more: those that might have are dead.
            Late: None does by the deadline.
        """
        while True:
            self.pump()
            for peer in self.peers:
                if peer.paused == point and not peer.gone:
                    return peer
            if self.prospects is not None and self.prospects.hopeless(self.peers):
                # What a fake said last may have come between the two looks.
                self.pump()
                if not any(peer.paused == point and not peer.gone for peer in self.peers):
                    raise Gone(f"fake pause {point}", expected="a fake that waits there", found=self._where())
            if deadline.expired():
                where = f"fake pause {point}"
                raise Late(where, expected="a fake that waits there", found=self._where(), deadline=deadline)
            self.pump(deadline)

    def resume(self, peer: Peer) -> None:
        """Let a fake go on from where it waits."""
        if peer.paused is None:
            raise HarnessError(f"the fake with pid {peer.pid} doesn't wait anywhere")
        point, peer.paused = peer.paused, None
        peer.send({"resume": point})

    def pause(self, peer: Peer, point: str) -> None:
        """Have a fake that runs already wait at one more point."""
        peer.send({"pause": point})

    def forget(self) -> None:
        """Take what has arrived, and let go of the fakes that are gone: a long run has thousands of them."""
        self.pump()
        for peer in [peer for peer in self.peers if peer.gone]:
            peer.close()
            self.peers.remove(peer)

    def close(self) -> None:
        """Close everything: every fake that still lives ends by its lifeline."""
        for peer in self.peers:
            peer.close()
        self._door.close()

    def _take(self, peer: Peer) -> None:
        for message in peer.read():
            match message:
                case {"hello": {"pid": int(pid), "token": str(token)}}:
                    peer.pid = pid
                    self.heard.add(pid)
                    helper = mapping(message["hello"]).get("helper") is True
                    self._greet(peer, pid, token, helper=helper)
                case {"paused": str(point)}:
                    peer.paused = point
                    peer.passed.append(f"{point}#{message.get('hit', 1)}")
                case _:
                    raise HarnessError(f"the fake said {message!r}")

    def _greet(self, peer: Peer, pid: int, token: str, *, helper: bool) -> None:
        if token != self._token:
            raise HarnessError(f"a process with pid {pid} said another test's token")
        if peer.line.client not in {None, pid}:
            raise HarnessError(f"a process with pid {peer.line.client} said that it has pid {pid}")
        pin = self._host.pin(pid)
        if pin is not None:
            self._processes.said(pid, pin, "child of a VMM" if helper else "token")

    def _where(self) -> str:
        told = {one.pid: one for one in self.prospects.told(self.peers)} if self.prospects is not None else {}
        here = [
            f"pid {peer.pid} {'gone' if peer.gone else peer.paused or 'running'}"
            for peer in self.peers
            if peer.pid not in told
        ]
        here += [one.last for one in told.values()]
        if self.peers and not told and all(peer.gone for peer in self.peers):
            here.append("its own words are in the log that the orchestrator gave it, below state/ in the evidence")
        if not here and self.prospects is not None and self.prospects.hopeless(self.peers):
            return "that no VMM was started"
        return "; ".join(here) or "no fake on the channel"
