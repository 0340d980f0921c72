"""The JSON lines that an orchestrator under test speaks, as values. `docs/protocol.md` is the whole of it for people.

The program says ``{"hello": {...}}`` first. A request is ``{"id": 1, "op": "start", "args": {...}}``, with ``"pause":
["start.spawned", 1]`` where the program shall wait at the first hit of a step, or ``"exit": [...]`` where it shall end
there without any clean-up. It announces every step as ``{"id": 1, "step": "start.spawned", "hit": 1}``, waits for
``{"resume": 1}`` where a pause was asked, and ends with ``{"id": 1, "ok": true, "result": {...}}`` or ``{"id": 1, "ok":
false, "code": "Busy", "message": "..."}``. What a line must hold is checked against :mod:`harness.sut.messages`.

A program whose ``ways`` hold ``"audit"`` takes ``"audit": true``, too: then it announces what its own run-time reports
of writes and locks, each before it happens, as ``{"id": 1, "event": "rename:...", "hit": 1}``, and ``pause`` and
``exit`` may name such an event (:mod:`harness.sut.audit`).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TypeVar, cast

import msgspec

from harness.errors import OfOrchestrator, Unmet, is_finding
from harness.sut.messages import CODES, MAX_LINE, PROTOCOL, RESULTS, HelloSaid
from harness.sut.needs import DETAILS

__tracebackhide__ = is_finding

T = TypeVar("T")

CRASHED = 77
"""The status with which the bundled reference ends where ``exit`` was asked."""

PLACE = 2
"""How many values say where: a step or event, and a hit."""
SHOWN = 200
"""Characters of what a program said that an error shows."""

Json = object
Args = dict[str, object]


class ProtocolBroken(OfOrchestrator):
    """The program said something that the protocol doesn't know."""


@dataclass(frozen=True, slots=True)
class Hello:
    """What a program says of itself."""

    operations: tuple[str, ...]
    steps: tuple[str, ...]
    needs: tuple[str, ...] = ()
    ways: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hit:
    """One step or event, announced for the n-th time in an operation."""

    step: str
    hit: int

    def __str__(self) -> str:
        return f"{self.step}#{self.hit}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of an operation.

    Attributes:
        ok: Whether it succeeded.
        result: Its result, empty for a failure.
        code: The stable code of its error, empty for a success.
        message: The error's one line.
        steps: What it announced, in order.
        more: What else the error carries, for example ``category`` and ``status``; None: nothing is promised.
    """

    ok: bool
    result: dict[str, object] = field(default_factory=dict[str, object])
    code: str = ""
    message: str = ""
    steps: tuple[Hit, ...] = ()
    more: dict[str, object] | None = None

    @property
    def details(self) -> dict[str, object]:
        """What else the error carries.

        Raises:
            Unmet: The orchestrator promises nothing.
        """
        if self.more is None:
            raise Unmet(DETAILS)
        return self.more

    def __str__(self) -> str:
        return f"success {self.result}" if self.ok else f"{called(self.code)}: {self.message}"


def called(code: str) -> str:
    """Return the code of a failure for a text: one that the protocol doesn't know with those that may be meant."""
    if code in CODES:
        return code
    from difflib import get_close_matches  # noqa: PLC0415 - where an answer is wrong

    # Other languages write names in other letters: ALREADY_EXISTS, already-exists.
    plain = {known.lower(): known for known in CODES}
    near = get_close_matches(re.sub(r"[^a-z]", "", code.lower()), plain, cutoff=0.55)
    known = f"the nearest: {', '.join(plain[one] for one in near)}" if near else f"it has {', '.join(CODES)}"
    return f"{code} (no code of protocol {PROTOCOL}; {known})"


def encode(message: dict[str, object]) -> bytes:
    """Return one message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes, where: str) -> dict[str, object]:
    """Return the message of a line.

    Args:
        line: What was said.
        where: The operation, for the error.

    Raises:
        ProtocolBroken: It isn't one JSON object, or is longer than a line may be.
    """
    if len(line) > MAX_LINE:
        limit = f"a line of over {MAX_LINE} bytes, the limit of protocol {PROTOCOL}"
        raise ProtocolBroken(f"{where}: the orchestrator said {limit}")
    try:
        message = mapping(json.loads(line))
    except (ValueError, RecursionError):
        message = {}
    if not message:
        raise ProtocolBroken(
            f"{where}: the orchestrator said {_shown(line)}, which isn't a message of one JSON object; what it prints "
            "besides the protocol belongs on its error output"
        )
    return message


def read_hello(message: dict[str, object]) -> Hello:
    """Return what the first line says.

    Raises:
        ProtocolBroken: It is no hello of this protocol.
    """
    values = mapping(message.get("hello"))
    if not values:
        raise ProtocolBroken(f"the orchestrator's first line is {_shown(message)}, not a hello")
    if values.get("protocol") != PROTOCOL:
        raise ProtocolBroken(f"the orchestrator speaks protocol {values.get('protocol')!r}, this harness {PROTOCOL}")
    said = convert(message, HelloSaid, "hello").hello
    return Hello(said.operations, said.steps, said.needs, said.ways)


def convert(message: dict[str, object], kind: type[T], where: str) -> T:
    """Return a message as its type.

    Args:
        message: What was said.
        kind: What it must be.
        where: The operation, for the error.

    Raises:
        ProtocolBroken: A field is missing, or of another type.
    """
    try:
        return msgspec.convert(message, kind)
    except msgspec.ValidationError as error:
        raise ProtocolBroken(f"{where}: the orchestrator said {_shown(message)}: {error}") from None


def check_result(op: str, result: dict[str, object]) -> None:
    """Check that a result holds what those of its operation must.

    Raises:
        ProtocolBroken: It doesn't.
    """
    if op in RESULTS:
        convert(result, RESULTS[op], f"the result of {op}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def asked(message: dict[str, object]) -> str:
    """Return a request in a few words."""
    if "resume" in message:
        return "resumes"
    held = "".join(
        f", {word} at {at[0]}#{at[1]}"
        for word in ("pause", "exit")
        if isinstance(at := message.get(word), list) and len(cast("list[object]", at)) == PLACE
    )
    return f"asks for {message.get('op')}{held}"


def said(message: dict[str, object]) -> str:
    """Return what a program said in a few words."""
    match message:
        case {"hello": _}:
            return "hello"
        case {"step": name, "hit": hit} | {"event": name, "hit": hit}:
            return f"{name}#{hit}"
        case {"ok": True}:
            verdict = mapping(message.get("result")).get("verdict")
            return f"done: {verdict}" if verdict else "done"
        case {"ok": False, "code": code}:
            return f"failed: {code}: {message.get('message', '')}"
        case _:
            return "says " + ", ".join(message)


def words(value: object) -> tuple[str, ...]:
    """Return a JSON list of strings as a tuple; anything else is empty."""
    if not isinstance(value, list):
        return ()
    return tuple(str(entry) for entry in cast("list[object]", value))


def mapping(value: object) -> dict[str, object]:
    """Return a JSON object as a dict; anything else is empty."""
    if not isinstance(value, dict):
        return {}
    return {str(key): entry for key, entry in cast("dict[object, object]", value).items()}
