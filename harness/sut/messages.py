"""The messages of protocol version 1 as types: `docs/schema/protocol-1.json` is written from them.

A program under test reads :class:`Request` and :class:`Resume`, and says the others. `docs/protocol.md` is the same for
people. Within version 1 nothing here changes its meaning and nothing goes; an optional field may come.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

PROTOCOL = 1

MAX_LINE = 4 * 1024 * 1024
"""Bytes of the longest line that either side may send, its newline not counted."""

HELLO = 15.0
"""Seconds that a program may take to say hello."""

MAX_HITS = 10_000
"""How many steps and events one operation may announce."""

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:-]{1,100}$")]
Number = Annotated[int, msgspec.Meta(ge=1)]
Point = tuple[Annotated[str, msgspec.Meta(min_length=1)], Number]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Status = Annotated[int, msgspec.Meta(ge=0, le=255)]
Anything = Annotated[object, msgspec.Meta(extra_json_schema={"description": "any value"})]
Base64 = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9+/]*={0,2}$")]


class HelloBody(msgspec.Struct, frozen=True):
    """What a program says of itself.

    Attributes:
        protocol: The version that it speaks.
        operations: The operations that it answers.
        steps: The steps that it may announce and can be held at.
        needs: What it meets of the needs that scenarios have beyond operations, steps and ways.
        ways: What else a request may ask of it: ``exit``, ``audit``.
    """

    protocol: Literal[1]
    operations: tuple[Name, ...]
    steps: tuple[Name, ...] = ()
    needs: tuple[Name, ...] = ()
    ways: tuple[Name, ...] = ()


class HelloSaid(msgspec.Struct, frozen=True):
    """The first line of a program."""

    hello: HelloBody


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for an operation.

    Attributes:
        id: What everything that is said about it carries.
        op: The operation.
        args: Its arguments.
        pause: The step or event, and its hit, at which to wait for :class:`Resume`.
        exit: The step or event, and its hit, at which to end at once, without any clean-up.
        audit: Whether to announce what the program's own run-time reports of writes and locks, too.
    """

    id: Number
    op: Name
    args: dict[str, msgspec.Raw] = {}
    pause: Point | None = None
    exit: Point | None = None
    audit: bool = False


class Resume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Goes on from a pause of the operation with this id."""

    resume: Number


class StepSaid(msgspec.Struct, frozen=True):
    """A step has happened, for the n-th time in the operation."""

    id: Number
    step: Name
    hit: Number


class EventSaid(msgspec.Struct, frozen=True):
    """An event of the program's run-time is about to happen, for the n-th time in the operation."""

    id: Number
    event: Annotated[str, msgspec.Meta(min_length=1)]
    hit: Number


class Success(msgspec.Struct, frozen=True):
    """The operation has ended well; ``ok`` is true."""

    id: Number
    ok: bool
    result: dict[str, Anything] = {}


class Failure(msgspec.Struct, frozen=True):
    """The operation has failed; ``ok`` is false.

    Attributes:
        id: Which one.
        ok: False.
        code: One word of the table of codes.
        message: One line for a person: the file or option, why, what to do.
        details: What a program can act on, by the names of the table of codes.
    """

    id: Number
    ok: bool
    code: Name
    message: str
    details: dict[str, Anything] = {}


class Named(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What every operation takes.

    Attributes:
        root: The state root, a private directory that is there.
        name: The sandbox's name: everything of it is in that directory below the root.
        timeout: Seconds that the operation may take.
    """

    root: str
    name: str
    timeout: Seconds = 60.0


class ExecArgs(Named, frozen=True, kw_only=True, rename="camel"):
    """What `exec` takes.

    Attributes:
        argv: The program in the guest and its arguments.
        cwd: Where it runs.
        environment: Its variables, each ``NAME=value``.
        inherit_environment: Whether it has the agent's variables, too.
        timeout_ms: Milliseconds after which the guest ends it; 0: never.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    environment: tuple[str, ...] | None = None
    inherit_environment: bool = False
    timeout_ms: int = 0


class StopArgs(Named, frozen=True, kw_only=True, rename="camel"):
    """What `stop` takes.

    Attributes:
        force_within: Seconds within which a VMM that didn't stop by the timeout is ended by force; None: never.
    """

    force_within: Seconds | None = None


class ExecResult(msgspec.Struct, frozen=True):
    """How a program in the guest ended: ``exit``, ``signal``, ``timeout`` or another word of the agent's."""

    category: str
    status: Status
    stdout: Base64
    stderr: Base64


class StopResult(msgspec.Struct, frozen=True):
    """How a VMM was stopped."""

    outcome: Literal["graceful", "forced"]


class VerdictResult(msgspec.Struct, frozen=True):
    """What is known of a sandbox's VMM; ``parts`` are those of the runtime identity that differ."""

    verdict: Literal["live", "mismatched", "exited", "indeterminate", "stopped"]
    reason: str = ""
    parts: tuple[str, ...] = ()


ARGUMENTS: dict[str, type[msgspec.Struct]] = {
    "provision": Named,
    "start": Named,
    "exec": ExecArgs,
    "stop": StopArgs,
    "reattach": Named,
    "status": Named,
    "deprovision": Named,
}
"""What each operation takes; `provision` takes the fields of a :class:`SandboxRequest` beside those."""

RESULTS: dict[str, type[msgspec.Struct]] = {
    "exec": ExecResult,
    "stop": StopResult,
    "reattach": VerdictResult,
    "status": VerdictResult,
}
"""What the result of an operation must hold; the others may hold anything."""

CODES = (
    "NotFound",
    "AlreadyExists",
    "Busy",
    "Malformed",
    "Refused",
    "ForeignEntries",
    "TimedOut",
    "Indeterminate",
    "Mismatched",
    "LaunchFailed",
    "SessionFailed",
    "VmmExited",
)
"""What ``code`` may be, in the order of the page's table."""

SAID = (HelloSaid, StepSaid, EventSaid, Success, Failure)
ASKED = (Request, Resume)


def schema() -> bytes:
    """Return the JSON schema of every line of either side, as a text to publish."""
    # What judges an orchestrator imports nothing of the reference.
    from nvx_ref.configuration import SandboxRequest  # noqa: PLC0415

    kinds = [*SAID, *ASKED, *{*ARGUMENTS.values()}, *{*RESULTS.values()}, SandboxRequest]
    refs, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    by_kind = dict(zip(kinds, refs, strict=True))
    parts[Success.__name__]["properties"]["ok"] = {"const": True}
    parts[Failure.__name__]["properties"]["ok"] = {"const": False}
    # On the wire the sandbox's place and the request for it are one object.
    parts["SandboxRequest"]["properties"] |= parts[Named.__name__]["properties"]
    arguments = {op: [by_kind[kind]] for op, kind in ARGUMENTS.items()}
    arguments["provision"].append(by_kind[SandboxRequest])
    rules = [
        {"if": {"properties": {"op": {"const": op}}}, "then": {"properties": {"args": {"allOf": whole}}}}
        for op, whole in arguments.items()
    ]
    parts[Request.__name__]["allOf"] = rules
    for op, kind in RESULTS.items():
        parts[kind.__name__].setdefault("$comment", "The result of an answer to " + op)
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of either side, orchestrator protocol version 1",
        "anyOf": [by_kind[kind] for kind in (*SAID, *ASKED)],
        "$defs": parts,
    }
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"
