"""The test adapter's agent: another protocol over the same opaque DATA (contract openvmm 10, item 7)."""

from __future__ import annotations

import binascii
import json

from fake_openvmm import messages, nvxc
from fake_openvmm.agent import Agent
from fake_openvmm.execution import Sink
from fake_openvmm.mappings import MappingRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from fake_openvmm.machine import Json
    from fake_openvmm.mappings import Mappings
    from fake_openvmm.vm import Vm

MAX_MESSAGE = 1_048_576
LENGTH_SIZE = 4
ENTRY_FIELDS = 3
ANY_MAPPINGS = 4096
MAX_TIMEOUT = (1 << 32) - 1


class Malformed(Exception):  # noqa: N818 - what the message is
    """A message that ends the guest."""


class Adapter(Agent):
    """Serves JSON messages that may start, end and span anywhere."""

    def __init__(self, vm: Vm, mappings: Mappings, facts: dict[str, Json]) -> None:
        super().__init__(vm)
        self._mappings = mappings
        self._told = facts
        self._stream = bytearray()
        self._operations: dict[str, Callable[[int, dict[str, Json]], None]] = {
            "hello": self._hello,
            "facts": self._facts,
            "maps": self._maps,
            "exec": self._exec,
            "stop": self._stop,
        }

    def reset(self) -> None:
        """Forget the host that was there, and its workload."""
        self._stream.clear()
        self.vm.abandon()

    def data(self, payload: bytes) -> None:
        """Take a piece of the stream; a malformed message ends the guest."""
        self.credit(len(payload))
        self._stream += payload
        try:
            while self.vm.runs and (message := self._take()) is not None:
                self._serve(message)
        except Malformed as error:
            self.vm.agent_failed("message", str(error))

    def _take(self) -> bytes | None:
        if len(self._stream) < LENGTH_SIZE:
            return None
        length = int.from_bytes(self._stream[:LENGTH_SIZE], "little")
        if not 0 < length <= MAX_MESSAGE:
            raise Malformed(f"message of {length} bytes")
        if len(self._stream) < LENGTH_SIZE + length:
            return None
        message = bytes(self._stream[LENGTH_SIZE : LENGTH_SIZE + length])
        del self._stream[: LENGTH_SIZE + length]
        return message

    def _serve(self, raw: bytes) -> None:
        try:
            message: Json = json.loads(raw.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise Malformed("no JSON in UTF-8") from error
        if not isinstance(message, dict):
            raise Malformed("no object")
        number, name = message.get("id"), message.get("op")
        if not isinstance(number, int) or isinstance(number, bool) or not isinstance(name, str):
            raise Malformed("no id or no op")
        self.vm.tools.evidence.event("request", name=name, request=number, size=len(raw), epoch=self.epoch)
        operation = self._operations.get(name)
        if operation is None:
            self.fail(number, "unsupported-operation", nvxc.UNSUPPORTED)
        elif self.vm.execution is not None:
            self.fail(number, "busy", nvxc.BUSY)
        else:
            try:
                operation(number, message)
            except nvxc.InvalidRequest:
                self.fail(number, "invalid-request", nvxc.INVALID)

    def answer(self, message: dict[str, Json]) -> None:
        """Send one message."""
        raw = json.dumps(message).encode()
        self.send(len(raw).to_bytes(LENGTH_SIZE, "little") + raw)

    def fail(self, number: int, category: str, status: int) -> None:
        """Answer that the request failed."""
        self.answer({"id": number, "ok": False, "category": category, "status": status})

    def _hello(self, number: int, message: dict[str, Json]) -> None:
        del message
        self.answer({"id": number, "ok": True, "agent": "adapter", "epoch": self.epoch})

    def _facts(self, number: int, message: dict[str, Json]) -> None:
        del message
        self.answer({"id": number, "ok": True, **self._told})

    def _maps(self, number: int, message: dict[str, Json]) -> None:
        if not self.vm.at("before_maps"):
            return
        first, entries = message.get("first"), message.get("entries")
        if not isinstance(first, int) or not isinstance(entries, list) or not entries:
            raise nvxc.InvalidRequest("no entries")
        try:
            self._mappings.apply(first, [_mapping(entry) for entry in entries])
        except MappingRefused as refused:
            self.fail(number, "mapping-failed", refused.status)
        else:
            self.answer({"id": number, "ok": True})

    def _exec(self, number: int, message: dict[str, Json]) -> None:
        if not self._mappings.complete:
            self.fail(number, "mappings-incomplete", nvxc.INCOMPLETE)
            return
        request = _exec_request(message)
        if not self.vm.at("before_exec"):
            return
        try:
            self.vm.execute(request, _Reply(self, number))
        except OSError:
            self.fail(number, "launch-failed", nvxc.FAILED)

    def _stop(self, number: int, message: dict[str, Json]) -> None:
        del message
        if not self.vm.tools.knobs.flag("ignore_stop") and self.vm.at("before_stopped"):
            self.answer({"id": number, "ok": True})
            self.vm.power_off(0)


class _Reply(Sink):
    """Collects what a workload says and answers once."""

    def __init__(self, agent: Adapter, number: int) -> None:
        self._agent = agent
        self._number = number
        self._said = {messages.STDOUT: bytearray(), messages.STDERR: bytearray()}

    def output(self, stream: int, data: bytes) -> None:
        self._said[stream] += data

    def ended(self, category: str, status: int) -> None:
        self._agent.answer(
            {
                "id": self._number,
                "ok": True,
                "category": category,
                "status": status,
                "stdout": _base64(self._said[messages.STDOUT]),
                "stderr": _base64(self._said[messages.STDERR]),
            }
        )

    def refused(self, stage: int, error: int) -> None:
        if stage == messages.STAGE_LAUNCH:
            self._agent.fail(self._number, "launch-failed", nvxc.FAILED)
            return
        self._said[messages.STDERR] += f"can't execute: error {error}\n".encode()
        self.ended("exit", nvxc.FAILED)


def _base64(data: bytearray) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def _mapping(entry: Json) -> nvxc.Mapping:
    if not isinstance(entry, list) or len(entry) != ENTRY_FIELDS:
        raise nvxc.InvalidRequest("entry that isn't a source, a target and a mode")
    source, target, read_only = entry
    if not isinstance(source, str) or not isinstance(target, str) or not isinstance(read_only, bool):
        raise nvxc.InvalidRequest("entry that isn't a source, a target and a mode")
    return nvxc.checked_mapping(_bytes(source), _bytes(target), read_only=read_only)


def _exec_request(message: dict[str, Json]) -> nvxc.ExecRequest:
    argv, timeout = message.get("argv"), message.get("timeoutMs", 0)
    if not isinstance(argv, list) or not isinstance(timeout, int) or not 0 <= timeout <= MAX_TIMEOUT:
        raise nvxc.InvalidRequest("no argv or no timeout")
    arguments = [_bytes(argument) for argument in argv if isinstance(argument, str)]
    if len(arguments) != len(argv) or not 0 < len(argv) <= nvxc.MAX_ARGUMENTS:
        raise nvxc.InvalidRequest("argv of a wrong length or kind")
    if not arguments[0].startswith(b"/") or not all(
        0 < len(argument) <= nvxc.MAX_ITEM and 0 not in argument for argument in arguments
    ):
        raise nvxc.InvalidRequest("argument of a wrong length, or a relative program")
    return nvxc.ExecRequest(timeout, arguments)


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise nvxc.InvalidRequest("text that isn't Unicode") from error
