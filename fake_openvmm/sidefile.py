"""The side file: what the harness wants to see and how it wants the program to misbehave.

`{"evidence": DIR, "channel": PATH or null, "token": TEXT, "pauses": [POINT, ...], "knobs": {NAME: VALUE},
"machine": {...}}`. Every key may be absent; with the last one a real guest runs behind the front, see
`qemu.settings`. Without a side file nothing of this module is imported.
"""

from __future__ import annotations

import os

from fake_openvmm import host, jsontext
from fake_openvmm.knobs import SIDE_FILE_STATUS, Knobs, SideFileError
from fake_openvmm.machine import Evidence, Log, Tools
from fake_openvmm.pauses import Pauses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.machine import Json
    from fake_openvmm.transport import Channel

KEYS = {"evidence", "channel", "token", "pauses", "knobs", "machine"}
ENDS = ("exit_at", "fail_at", "crash_at")


class SideFile:
    """One read side file.

    Attributes:
        tools: what the run uses.
        helper: the number of the child that keeps the log, or None.
    """

    def __init__(self, path: str, argv: list[str]) -> None:
        """Take the descriptor table, then read the file, open the evidence and the channel.

        Raises:
            SideFileError: the file, a pause point or a knob isn't what the harness may write.
        """
        table = host.descriptors()
        document = _read(path)
        self._channel = _text(document, "channel")
        self._token = _text(document, "token") or ""
        self.evidence = _evidence(_text(document, "evidence"), self._token)
        self.evidence.event("start", argv=argv, token=self._token, **host.facts())
        self.evidence.event("descriptors", table=table)
        try:
            self._prepare(document)
        except SideFileError:
            self.evidence.event("exit", status=SIDE_FILE_STATUS)
            raise

    def _prepare(self, document: dict[str, Json]) -> None:
        knobs = _knobs(document)
        pauses = document.get("pauses") or []
        if not isinstance(pauses, list):
            raise SideFileError("'pauses' is a list of points")
        wanted = [point for point in pauses if isinstance(point, str)]
        if self._channel is None and (pauses or knobs.flag("helper_keeps_log")):
            raise SideFileError("a pause and a helper need a channel: nobody could end them")
        self.tools = Tools(self.evidence, knobs, Pauses(self.evidence, wanted), Log())
        machine = document.get("machine")
        if machine is not None and not isinstance(machine, dict):
            raise SideFileError("'machine' is an object")
        self.tools.machine = machine
        self.tools.pauses.ends({name: knobs.table(name) for name in ENDS if knobs.table(name)}, host.die_by)
        if knobs.text("process_name"):
            host.set_name(knobs.text("process_name"))
        self._start(knobs)

    def _start(self, knobs: Knobs) -> None:
        if self._channel is None:
            return
        if knobs.flag("helper_keeps_log"):
            from fake_openvmm import tricks  # noqa: PLC0415 - for this knob only

            self.evidence.event("helper", pid=tricks.keep_log(lambda pid: self._connect(pid, helper=True)))
        channel = self._connect(os.getpid(), helper=False)
        self.tools.pauses.attach(channel, jsontext.encode, jsontext.decode)

    def _connect(self, pid: int, *, helper: bool) -> Channel:
        try:
            channel = host.connect_channel(self._channel or "")
        except OSError as error:
            raise SideFileError(f"can't reach the harness at {self._channel}: {error}") from error
        hello: dict[str, object] = {"pid": pid, "token": self._token}
        if helper:
            hello["helper"] = True
        channel.sendall(jsontext.encode({"hello": hello}).encode() + b"\n")
        return channel


def _read(path: str) -> dict[str, Json]:
    try:
        with open(path, encoding="utf-8") as file:
            document = jsontext.decode(file.read())
    except (OSError, ValueError) as error:
        raise SideFileError(f"can't read {path}: {error}") from error
    if not isinstance(document, dict):
        raise SideFileError(f"{path} holds no object")
    unknown = sorted(set(document) - KEYS)
    if unknown:
        raise SideFileError(f"unknown keys in {path}: {', '.join(unknown)}")
    return document


def _text(document: dict[str, Json], key: str) -> str | None:
    value = document.get(key)
    if value is not None and not isinstance(value, str):
        raise SideFileError(f"'{key}' is a text")
    return value


def _knobs(document: dict[str, Json]) -> Knobs:
    values = document.get("knobs") or {}
    if not isinstance(values, dict):
        raise SideFileError("'knobs' is an object")
    return Knobs(values)


def _evidence(directory: str | None, token: str) -> Evidence:
    if directory is None:
        return Evidence()
    name = f"{token or 'fake'}.{os.getpid()}.jsonl"
    try:
        fd = os.open(os.path.join(directory, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT | host.OPEN_FLAGS, 0o600)
    except OSError as error:
        raise SideFileError(f"can't write evidence: {error}") from error
    return Evidence(fd, jsontext.encode)
