"""The managed agent: NVXC as the layered and the direct guest serve it (contract openvmm 3.6)."""

from __future__ import annotations

import os

from fake_openvmm import messages, nvxc
from fake_openvmm.agent import Agent
from fake_openvmm.execution import Sink
from fake_openvmm.mappings import MappingRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.machine import Tools
    from fake_openvmm.mappings import Mappings
    from fake_openvmm.mischief import Mischief
    from fake_openvmm.vm import Vm

LAYERED_FEATURES = 0x15
DIRECT_FEATURES = 0x7D
STREAMS = {messages.STDOUT: nvxc.STDOUT, messages.STDERR: nvxc.STDERR}


class Managed(Agent):
    """Serves one request at a time; beside an EXEC only its CANCEL."""

    def __init__(self, vm: Vm, mappings: Mappings, *, layered: bool) -> None:
        super().__init__(vm)
        knobs = vm.tools.knobs
        self._mappings = mappings
        self._layered = layered
        self._mischief = _mischief(vm.tools)
        self._features = knobs.integer("features", LAYERED_FEATURES if self._layered else DIRECT_FEATURES)
        self._old = knobs.flag("old_guest")
        self._ignores_stop = knobs.flag("ignore_stop")
        self._ignores_cancel = knobs.flag("ignore_cancel")
        self._running = 0

    def reset(self) -> None:
        """Kill the workload; nothing more is said of it."""
        self._running = 0
        self.vm.abandon()

    def data(self, payload: bytes) -> None:
        """Serve one frame; a malformed one ends the guest."""
        try:
            frame = nvxc.decode(payload)
        except nvxc.FrameError as error:
            self.vm.agent_failed("frame", str(error))
            return
        self.credit(len(payload))
        if self._mischief is not None and self._mischief.silent:
            return
        self.vm.tools.evidence.event(
            "request",
            name=nvxc.NAMES.get(frame.kind, f"kind {frame.kind}"),
            request=frame.request,
            size=len(frame.payload),
            epoch=self.epoch,
        )
        if frame.kind == nvxc.CANCEL:
            self._cancel(frame)
        elif self.vm.execution is not None:
            self.fail(frame.request, "busy", nvxc.BUSY)
        else:
            self._serve(frame)

    def answer(self, kind: int, request: int, payload: bytes = b"", status: int = 0) -> None:
        """Send one frame."""
        raw = nvxc.encode(kind, request, payload, status)
        if self._mischief is None:
            self.send(raw)
        else:
            self._mischief.say(raw, self)

    def fail(self, request: int, category: str, status: int) -> None:
        """Answer with an ERROR."""
        self.answer(nvxc.ERROR, request, category.encode(), status)

    def _serve(self, frame: nvxc.Frame) -> None:
        if frame.kind == nvxc.STOP:
            self._stop(frame)
        elif frame.kind in {nvxc.PING, nvxc.FEATURES}:
            self._tell(frame)
        elif frame.kind == nvxc.MAPS and not self._old:
            self._map(frame)
        elif frame.kind == nvxc.EXEC:
            self._exec(frame)
        else:
            self.fail(frame.request, "unsupported-operation", nvxc.UNSUPPORTED)

    def _tell(self, frame: nvxc.Frame) -> None:
        if frame.kind == nvxc.FEATURES and self._old:
            self.fail(frame.request, "unsupported-operation", nvxc.UNSUPPORTED)
        elif frame.payload:
            self.fail(frame.request, "invalid-request", nvxc.INVALID)
        elif frame.kind == nvxc.PING:
            self.answer(nvxc.READY, frame.request)
        else:
            self.answer(nvxc.READY, frame.request, self._features.to_bytes(4, "little"))

    def _stop(self, frame: nvxc.Frame) -> None:
        if frame.payload:
            self.vm.agent_failed("stop", "STOP with a payload")
        elif not self._ignores_stop and self.vm.at("before_stopped"):
            self.answer(nvxc.STOPPED, frame.request)
            self.vm.power_off(0)

    def _cancel(self, frame: nvxc.Frame) -> None:
        execution = self.vm.execution
        if execution is None or frame.payload or frame.request != self._running or self._ignores_cancel:
            return
        execution.kill(messages.CANCELLED)

    def _map(self, frame: nvxc.Frame) -> None:
        if not self.vm.at("before_maps"):
            return
        try:
            self._mappings.apply(*nvxc.decode_maps(frame.payload))
        except nvxc.InvalidRequest as error:
            self.vm.tools.evidence.event("maps_refused", reason=str(error))
            self.fail(frame.request, "invalid-request", nvxc.INVALID)
        except MappingRefused as refused:
            self.fail(frame.request, "mapping-failed", refused.status)
        else:
            self.answer(nvxc.READY, frame.request)

    def _exec(self, frame: nvxc.Frame) -> None:
        if not self._mappings.complete:
            self.fail(frame.request, "mappings-incomplete", nvxc.INCOMPLETE)
            return
        try:
            request = nvxc.decode_exec(frame.payload)
        except nvxc.InvalidRequest:
            self.fail(frame.request, "invalid-request", nvxc.INVALID)
            return
        if not self.vm.at("before_exec"):
            return
        self._running = frame.request
        try:
            self.vm.execute(request, _Reply(self, frame.request, request))
        except OSError as error:
            self.vm.tools.log.line("WARN", "fake_openvmm", "no guest process", error=error.strerror or "")
            self.fail(frame.request, "launch-failed", nvxc.FAILED)

    def refused(self, asked: int, request: nvxc.ExecRequest, stage: int, error: int) -> None:
        """Say why a workload couldn't be started."""
        if stage == messages.STAGE_LAUNCH:
            self.fail(asked, "launch-failed", nvxc.FAILED)
            return
        what = request.arguments[0] if stage == messages.STAGE_PROGRAM else request.directory or b"/"
        line = b"nvx-container-enter: " + what + b": " + os.strerror(error).encode() + b"\n"
        self.answer(nvxc.STDERR, asked, line)
        if stage == messages.STAGE_DIRECTORY and not self._layered:
            self.fail(asked, "cwd-failed", error)
        else:
            self.answer(nvxc.EXIT, asked, b"exit", nvxc.FAILED)


def _mischief(tools: Tools) -> Mischief | None:
    if not tools.knobs.text("guest") and not tools.knobs.items("frames"):
        return None
    from fake_openvmm.mischief import Mischief  # noqa: PLC0415 - at the harness's request only

    return Mischief(tools.knobs)


class _Reply(Sink):
    """Turns a workload's life into frames."""

    def __init__(self, agent: Managed, request: int, asked: nvxc.ExecRequest) -> None:
        self._agent = agent
        self._request = request
        self._asked = asked

    def output(self, stream: int, data: bytes) -> None:
        self._agent.answer(STREAMS[stream], self._request, data)

    def ended(self, category: str, status: int) -> None:
        self._agent.vm.tools.evidence.event("exit_status", request=self._request, category=category, status=status)
        self._agent.answer(nvxc.EXIT, self._request, category.encode(), status)

    def refused(self, stage: int, error: int) -> None:
        self._agent.refused(self._request, self._asked, stage, error)
