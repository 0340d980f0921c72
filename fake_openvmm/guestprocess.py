"""The process below which a VM's workloads run: Linux.

It has the null device on 0, 1 and 2, so that nothing in the guest holds the VMM's log; it adopts what its workloads
leave behind; and when its socket to the VMM closes, a SIGKILL of the VMM included, it ends all of it and itself.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys

assert sys.platform != "win32"

from fake_openvmm import archive, messages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_SUBREAPER: Final = 36
_HIGH_WATER = 1 << 18
_PATH = b"/usr/sbin:/usr/bin:/sbin:/bin"
_MANY = 1 << 20


class Leader:
    """The one execution that runs: its process, and the read ends of its pipes."""

    __slots__ = ("number", "pid", "pin", "pipes", "reasons", "status")

    def __init__(self, number: int, pid: int, pipes: dict[int, int]) -> None:
        self.number = number
        self.pid = pid
        self.pin = os.pidfd_open(pid)
        self.pipes = pipes
        self.reasons = 0
        self.status: int | None = None


class GuestProcess:
    """Serves one VM until its socket closes."""

    def __init__(self, control: int) -> None:
        self._control = control
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self._leader: Leader | None = None
        self._home = b""
        self._account = b"nobody"

    def serve(self) -> None:
        """Run until the VMM's end is closed; nothing of the guest is left then."""
        try:
            while self._turn():
                pass
        finally:
            self._end_all()
            if self._home:
                archive.remove(self._home)

    def _turn(self) -> bool:
        poll = select.poll()
        poll.register(self._control, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
        leader = self._leader
        if leader is not None:
            if leader.status is None:
                poll.register(leader.pin, select.POLLIN)
            if len(self._outgoing) < _HIGH_WATER:
                for pipe in leader.pipes:
                    poll.register(pipe, select.POLLIN)
        ready = dict(poll.poll())
        events = ready.pop(self._control, 0)
        if events & select.POLLOUT and not self._write():
            return False
        if events & ~select.POLLOUT and not self._read():
            return False
        if leader is not None and leader is self._leader:
            if leader.status is None:
                _reap_adopted(leader.pid)
            self._serve_leader(leader, ready)
        return True

    def _serve_leader(self, leader: Leader, ready: dict[int, int]) -> None:
        for pipe in [pipe for pipe in leader.pipes if pipe in ready]:
            data = os.read(pipe, messages.MAX_READ)
            if data:
                self._say(leader.pipes[pipe], data, leader.number)
            else:
                del leader.pipes[pipe]
                os.close(pipe)
        if leader.pin in ready:
            self._leader_exited(leader)
        if leader.status is not None and not leader.pipes:
            self._say(messages.DONE, b"", leader.number, leader.status, leader.reasons)
            self._drop_leader()

    def _leader_exited(self, leader: Leader) -> None:
        # While it is a zombie its number is nobody else's, and so is its group's.
        info = os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
        if info is None:
            return
        leader.status = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        self._end_all()

    def _read(self) -> bool:
        try:
            data = os.read(self._control, 65_536)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._incoming += data
        while (message := messages.take(self._incoming)) is not None:
            self._obey(message)
        return bool(data)

    def _write(self) -> bool:
        try:
            del self._outgoing[: os.write(self._control, self._outgoing)]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def _say(self, kind: int, data: bytes, a: int = 0, b: int = 0, c: int = 0) -> None:
        self._outgoing += messages.encode(kind, data, a, b, c)
        self._write()

    def _obey(self, message: messages.Message) -> None:
        number, value, count = message.numbers
        if message.kind == messages.SETUP:
            self._account, self._home, content = messages.unpack_items(message.data)
            os.mkdir(self._home, 0o700)
            archive.unpack(self._home, content)
        elif message.kind == messages.START:
            self._start(number, value, messages.unpack_items(message.data), count)
        elif message.kind == messages.KILL:
            self._kill(number, value)
        elif message.kind == messages.SAVE:
            self._abandon()
            self._say(messages.SAVED, archive.pack(self._home))

    def _start(self, number: int, flags: int, items: list[bytes], count: int) -> None:
        self._abandon()
        directory, arguments, entries = items[0], items[1 : count + 1], items[count + 1 :]
        environment = {} if flags & messages.OWN_ENVIRONMENT else self._environment(directory)
        for entry in entries:
            name, _, text = entry.partition(b"=")
            environment[name] = text
        pipes: list[int] = []
        stage = messages.STAGE_DIRECTORY
        try:
            os.chdir(directory)
            stage = messages.STAGE_LAUNCH
            pipes += os.pipe()
            pipes += os.pipe()
            stage = messages.STAGE_PROGRAM
            pid = _spawn(arguments, environment, pipes[1], pipes[3])
        except OSError as error:
            if stage == messages.STAGE_PROGRAM and isinstance(error, BlockingIOError):
                stage = messages.STAGE_LAUNCH
            for pipe in pipes:
                os.close(pipe)
            self._say(messages.REFUSED, b"", number, stage, error.errno or 0)
        else:
            os.close(pipes[1])
            os.close(pipes[3])
            self._leader = Leader(number, pid, {pipes[0]: messages.STDOUT, pipes[2]: messages.STDERR})
        finally:
            os.chdir("/")

    def _environment(self, directory: bytes) -> dict[bytes, bytes]:
        return {
            b"PATH": _PATH,
            b"TERM": b"linux",
            b"HOME": self._home,
            b"USER": self._account,
            b"LOGNAME": self._account,
            b"PWD": directory,
        }

    def _kill(self, number: int, reason: int) -> None:
        leader = self._leader
        if leader is None or leader.number != number:
            return
        if reason == messages.ABANDONED:
            self._abandon()
        elif leader.status is None and not _exited(leader.pid):
            leader.reasons |= reason
            _signal_group(leader.pid)

    def _abandon(self) -> None:
        """End the running execution; nothing more is said of it."""
        if self._leader is not None:
            self._end_all()
            self._drop_leader()

    def _drop_leader(self) -> None:
        leader, self._leader = self._leader, None
        if leader is not None:
            os.close(leader.pin)
            for pipe in leader.pipes:
                os.close(pipe)

    def _end_all(self) -> None:
        """End every process below this one and reap it.

        Only children are signalled: nobody else reaps them, so their numbers are theirs. What they leave is adopted
        and has its turn in the next round.
        """
        leader = self._leader
        if leader is not None and leader.status is None and not _exited(leader.pid):
            _signal_group(leader.pid)
        while children := _children():
            for pid in children:
                os.kill(pid, signal.SIGKILL)  # noqa: TID251 - a child that only this process reaps
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return


def _spawn(arguments: list[bytes], environment: dict[bytes, bytes], stdout: int, stderr: int) -> int:
    return os.posix_spawn(
        arguments[0],
        arguments,
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, stdout, 1),
            (os.POSIX_SPAWN_DUP2, stderr, 2),
        ],
        setpgroup=0,
        setsigmask=[],
        setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
    )


def _reap_adopted(leader: int) -> None:
    """Reap what a workload that runs has orphaned; its leader stays for whoever looks at its end."""
    while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
        if found.si_pid == leader:
            return
        os.waitpid(found.si_pid, 0)


def _exited(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _signal_group(leader: int) -> None:
    os.kill(leader, signal.SIGKILL)  # noqa: TID251 - it isn't reaped, so the number is its own
    try:
        os.killpg(leader, signal.SIGKILL)  # noqa: TID251 - and so is its group's, unless it has left that
    except ProcessLookupError:
        return


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        return _children_by_search()


def _children_by_search() -> list[int]:
    """As `_children`, on a kernel without that list."""
    found: list[int] = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.append(int(name))
    return found


def main(control: int) -> None:
    """Become a subreaper, keep nothing but the socket, and serve."""
    os.closerange(3, control)
    os.closerange(control + 1, _MANY)
    os.set_inheritable(control, False)
    os.set_blocking(control, False)
    os.umask(0o022)
    os.chdir("/")
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    GuestProcess(control).serve()
