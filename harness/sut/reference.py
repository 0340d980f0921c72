"""The reference orchestrator as a program that speaks the JSON lines, with the observer that holds and ends it.

It runs in a process of its own and never imports pytest. Its requests come on descriptor 0 and its answers go out on a
private copy of descriptor 1; the number 1 itself is pointed at the error output, so that nothing else that prints can
spoil an answer.
"""

from __future__ import annotations

import base64
import os
import sys
import traceback
from typing import TYPE_CHECKING

import msgspec

from harness.sut.audit import Points, listen
from harness.sut.messages import PROTOCOL, Request, Resume
from harness.sut.needs import NEEDS, WAYS
from harness.sut.protocol import CRASHED
from nvx_ref.configuration import SandboxRequest, configure
from nvx_ref.control import NvxcGuest
from nvx_ref.deadline import Deadline
from nvx_ref.errors import NvxError
from nvx_ref.nvxc import ExecRequest
from nvx_ref.orchestrator import Orchestrator
from nvx_ref.steps import Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from nvx_ref.control import GuestClient

Result = dict[str, object]


class Exec(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """The arguments of `exec`, as JSON names them."""

    argv: tuple[str, ...]
    cwd: str | None = None
    environment: tuple[str, ...] | None = None
    inherit_environment: bool = False
    timeout_ms: int = 0

    def request(self) -> ExecRequest:
        """Return them as the reference takes them."""
        return ExecRequest(**{name: getattr(self, name) for name in self.__struct_fields__})


class Lines:
    """The two ends of the conversation."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = os.fdopen(requests, "rb", closefd=False)
        self._answers = answers

    def read(self) -> bytes:
        """Return the next line, empty at the end."""
        return self._requests.readline()

    def say(self, message: Result) -> None:
        """Write one line whole."""
        data = msgspec.json.encode(message) + b"\n"
        while data:
            data = data[os.write(self._answers, data) :]


class Announcer:
    """The observer: announces each step and event, and holds or ends the process where the request says so."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._hits: dict[str, int] = {}
        self._request: Request | None = None

    def begin(self, request: Request) -> None:
        """Count the steps, and the events if it wants them, of a request from here on."""
        self._request = request
        self._hits = {}
        if request.audit:
            root, name = (msgspec.json.decode(request.args[word], type=str) for word in ("root", "name"))
            points = Points(root, name)
            listen(lambda event, arguments: self._pass("event", points.name(event, arguments)))

    def end(self) -> None:
        """Announce nothing more."""
        listen(None)
        self._request = None

    def __call__(self, step: Step) -> None:
        """Take one step that has happened."""
        self._pass("step", step.value)

    def _pass(self, kind: str, name: str | None) -> None:
        request = self._request
        if request is None or name is None:
            return
        hit = self._hits[name] = self._hits.get(name, 0) + 1
        self._lines.say({"id": request.id, kind: name, "hit": hit})
        if request.exit == (name, hit):
            os._exit(CRASHED)
        if request.pause == (name, hit):
            line = self._lines.read()
            # The end of the requests here means that the harness is gone; a clean-up would be an answer of its own.
            if not line or msgspec.json.decode(line, type=Resume).resume != request.id:
                os._exit(CRASHED)


class Operations:
    """The operations of the reference, from JSON arguments to JSON results."""

    def __init__(self, announcer: Announcer, guest: type[GuestClient]) -> None:
        self._announcer = announcer
        self._guest = guest
        self.table: dict[str, Callable[[str, Orchestrator, Deadline, dict[str, msgspec.Raw]], Result]] = {
            "provision": self._provision,
            "start": self._start,
            "exec": self._exec,
            "stop": self._stop,
            "reattach": self._reattach,
            "status": self._status,
            "deprovision": self._deprovision,
        }

    def run(self, request: Request) -> Result:
        """Run one operation and return its result."""
        args = dict(request.args)
        root = msgspec.json.decode(args.pop("root"), type=str)
        name = msgspec.json.decode(args.pop("name"), type=str)
        timeout = msgspec.json.decode(args.pop("timeout", msgspec.Raw(b"60")), type=float)
        orchestrator = Orchestrator(root, observer=self._announcer, guest=self._guest)
        return self.table[request.op](name, orchestrator, Deadline.after(timeout), args)

    def _provision(
        self, name: str, orchestrator: Orchestrator, deadline: Deadline, args: dict[str, msgspec.Raw]
    ) -> Result:
        request = msgspec.json.decode(msgspec.json.encode(args), type=SandboxRequest)
        configuration = configure(request, state=orchestrator.store.path(name))
        orchestrator.provision(name, configuration, deadline=deadline)
        return {}

    def _start(self, name: str, orchestrator: Orchestrator, deadline: Deadline, _: dict[str, msgspec.Raw]) -> Result:
        return _plain(orchestrator.start(name, deadline=deadline))

    def _exec(self, name: str, orchestrator: Orchestrator, deadline: Deadline, args: dict[str, msgspec.Raw]) -> Result:
        output: dict[str, bytes] = {"stdout": b"", "stderr": b""}

        def keep(stream: str, data: bytes) -> None:
            output[stream] += data

        request = msgspec.json.decode(msgspec.json.encode(args), type=Exec)
        result = orchestrator.exec(name, request.request(), deadline=deadline, output=keep)
        encoded = {stream: base64.b64encode(data).decode() for stream, data in output.items()}
        return {"category": result.category, "status": result.status, **encoded}

    def _stop(self, name: str, orchestrator: Orchestrator, deadline: Deadline, args: dict[str, msgspec.Raw]) -> Result:
        force_within = msgspec.json.decode(args.pop("forceWithin", msgspec.Raw(b"null")), type=float | None)
        stopped = orchestrator.stop(name, deadline=deadline, force_within=force_within)
        return {"outcome": type(stopped).__name__.lower()}

    def _reattach(self, name: str, orchestrator: Orchestrator, deadline: Deadline, _: dict[str, msgspec.Raw]) -> Result:
        return _plain(orchestrator.reattach(name, deadline=deadline))

    def _status(self, name: str, orchestrator: Orchestrator, _: Deadline, __: dict[str, msgspec.Raw]) -> Result:
        return _plain(orchestrator.status(name))

    def _deprovision(
        self, name: str, orchestrator: Orchestrator, deadline: Deadline, _: dict[str, msgspec.Raw]
    ) -> Result:
        orchestrator.deprovision(name, deadline=deadline)
        return {}


def serve(lines: Lines, guest: type[GuestClient] = NvxcGuest) -> None:
    """Say hello, then answer every request until there are no more."""
    announcer = Announcer(lines)
    operations = Operations(announcer, guest)
    steps = [step.value for step in Step]
    declared = {"operations": [*operations.table], "steps": steps, "needs": [*NEEDS], "ways": [*WAYS]}
    lines.say({"hello": {"protocol": PROTOCOL, **declared}})
    while line := lines.read():
        request = msgspec.json.decode(line, type=Request)
        announcer.begin(request)
        try:
            answer: Result = {"ok": True, "result": operations.run(request)}
        except NvxError as error:
            answer = {"ok": False, "code": error.code, "message": str(error), "details": _details(error)}
        except Exception as error:  # noqa: BLE001 - a fault of the reference is an answer, not a hung harness
            traceback.print_exc()
            answer = {"ok": False, "code": "Unexpected", "message": f"{type(error).__name__}: {error}"}
        announcer.end()
        lines.say({"id": request.id, **answer})


def _plain(value: object) -> Result:
    """Return a result as JSON values under its own names."""
    plain: Result = msgspec.to_builtins(value)
    return plain


def _details(error: NvxError) -> Result:
    names = ("subject", "detail", "parts", "names", "category", "status")
    found = {name: getattr(error, name, None) for name in names}
    return {name: value for name, value in found.items() if value}


def main(guest: type[GuestClient] = NvxcGuest) -> int:
    """Serve on the standard streams.

    Args:
        guest: What speaks to the guests' agent.
    """
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(Lines(sys.stdin.fileno(), answers), guest)
    return 0
