"""The document. Its schema is published as `docs/schema/report.json`; what isn't in it is refused."""

from __future__ import annotations

from typing import Literal

import msgspec

from harness.errors import HarnessError

FORMAT = 1
LARGEST = 256 << 20
"""Bytes that are read of a file that is given as a report."""
COMMAND_LINE_LIMIT = 2048
"""Bytes that a guest's kernel reads of its command line, the NUL included."""

Kind = Literal["scenarios", "sweep"]
Outcome = Literal["pass", "fail", "skip"]

SCENARIOS: Kind = "scenarios"
SWEEP: Kind = "sweep"


class _Document(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """What all parts of the document have in common."""


class Shard(_Document):
    """Which part of a run this is.

    Args:
        index: The how many-th part, from 1.
        count: Of how many.
        items: How many tests, or cells, are its own.
    """

    index: int = 1
    count: int = 1
    items: int = 0


class Selection(_Document):
    """What the whole run was to cover, all its parts together.

    Args:
        items: How many tests, or cells.
        digest: What tells one selection from another: the SHA-256 of their ids.
    """

    items: int = 0
    digest: str = ""


class Run(_Document):
    """One run on one machine.

    Args:
        kind: ``scenarios`` for pytest, ``sweep`` for `nvx-harness sweep`.
        backend: What VMs ran on.
        orchestrator: The command of the orchestrator under test, or ``reference``.
        selection: What all parts of the run cover.
        shard: Which part this is.
        system: The operating system.
        commit: Which commit of the project; empty where that isn't known.
        sweep: ``quick`` or ``full``.
        cut: Whether it ended before everything had run.
    """

    kind: Kind
    backend: str
    orchestrator: str
    selection: Selection
    shard: Shard
    system: str = ""
    commit: str = ""
    sweep: str = "quick"
    cut: bool = False


class Guest(_Document):
    """What a guest found, on a backend whose guests are Linux itself.

    Args:
        kernel: Its kernel's release.
        format: ``erofs`` or ``gpt``: how it read the distro; empty for a guest without layers.
        upper: ``ext4`` or ``ramfs``; empty as above.
        identity: The EROFS UUID or disk GUID that it found.
        block_size: Bytes of a logical block of the distro's device.
        scratch: Whether a scratch device exists.
        command_line: Its `/proc/cmdline`.
        mounts: Its `/proc/mounts`, line by line.
    """

    kernel: str
    format: str = ""
    upper: str = ""
    identity: str = ""
    block_size: int = 0
    scratch: bool = False
    command_line: str = ""
    mounts: list[str] = []


class Vmm(_Document):
    """What became of a VM monitor in a failed case.

    Args:
        pid: Its process.
        state: ``runs``, ``left`` where it still ran when its test had ended, or ``ended``.
        status: Its exit status, negative for the signal that ended it; null where only its parent was told.
        silent: Whether it never said hello to the harness: it died on its way there, or isn't that far.
        log: The last lines of its log.
    """

    pid: int
    state: Literal["runs", "left", "ended"]
    status: int | None = None
    silent: bool = False
    log: list[str] = []


class Row(_Document):
    """One test of a scenario on one backend.

    Args:
        node: Its id, as pytest takes it.
        scenario: The behaviour that it shows, in words.
        groups: The scenario markers that it carries.
        backend: What it ran on.
        cases: The cases of the fault catalogue that it replays.
        clauses: The clauses of the specification that it shows.
        outcome: ``pass``, ``fail`` or ``skip``.
        reason: Why, for a fail or a skip: one line.
        evidence: The directory with the evidence of a failure.
        replay: The command that runs it again.
        seconds: How long it took, set-up and clean-up included.
        figures: What it measured, by name.
        unseen: What it couldn't judge, since it isn't visible on the backend.
        guests: What its guests found, where they are Linux itself.
        command_line: Bytes of the longest kernel command line that it booted, by the family of the tokens; with the
            spaces between them and the NUL it has at most 2,048.
        vmms: What became of its VM monitors, for a fail.
    """

    node: str
    scenario: str
    groups: list[str]
    backend: str
    cases: list[str]
    clauses: list[str]
    outcome: Outcome
    reason: str = ""
    evidence: str = ""
    replay: str = ""
    seconds: float = 0.0
    figures: dict[str, int] = {}
    unseen: list[str] = []
    guests: list[Guest] = []
    command_line: dict[str, int] = {}
    vmms: list[Vmm] = []


class Crash(_Document):
    """One crash cell.

    Args:
        cell: Its id, ``operation/way/call:argument#k``.
        scene: The operation and what was before it: the id's first part.
        way: How the orchestrator ended, or what its call failed with.
        point: The step, event or call.
        hit: Which time, from 1.
        then: Where the next orchestrator crashed as well, with its ``#k``; empty: it didn't.
        backend: What VMs ran on.
        outcome: ``pass``, or ``fail``: a witness holds something against the orchestrator.
        fired: Whether the crash, or the error, happened where the cell says.
        verdict: What the next orchestrator's reattach came to; empty: it didn't come that far.
        reason: What was expected and found, for a fail.
        evidence: The directory with the evidence of a failure.
        replay: The command that runs it again.
        seconds: How long it took.
        node: The test that it belongs to; empty for a cell of `nvx-harness sweep`.
        vmms: What became of its VM monitors, for a fail.
    """

    cell: str
    scene: str
    way: str
    point: str
    hit: int
    then: str
    backend: str
    outcome: Outcome
    fired: bool = False
    verdict: str = ""
    reason: str = ""
    evidence: str = ""
    replay: str = ""
    seconds: float = 0.0
    node: str = ""
    vmms: list[Vmm] = []


class Moment(_Document, array_like=True):
    """Something that happened, on a monotonic clock.

    Args:
        offset: Microseconds since the first moment of its timeline.
        lane: Who: the harness, an orchestrator, a VM monitor, a witness.
        text: What.
    """

    offset: int
    lane: str
    text: str


class Timeline(_Document):
    """What happened in a failed case.

    Args:
        case: A row's node or a crash's cell.
        backend: What VMs ran on.
        moments: In order.
    """

    case: str
    backend: str
    moments: list[Moment]


class Skipped(_Document):
    """What could not run.

    Args:
        what: Which tests or cells, in words.
        backend: On which backend.
        reason: Why.
        count: How many.
    """

    what: str
    backend: str
    reason: str
    count: int = 1


class Carried(_Document):
    """How many ids the tests on a backend carried.

    Args:
        backend: The backend.
        kind: ``spec``, clauses of the specification, or ``case``, cases of the fault catalogue.
        passed: Ids of which a test passed and none failed.
        failed: Ids of which a test failed.
        skipped: Ids of which every test was skipped.
    """

    backend: str
    kind: Literal["spec", "case"]
    passed: int
    failed: int
    skipped: int


class Report(_Document):
    """The whole document.

    Args:
        format: 1.
        backend: What VMs ran on; several are separated by ``, ``.
        orchestrator: The command of the orchestrator under test, or ``reference``.
        runs: The runs that it is made of: one, or more once parts were merged.
        crash_points: Where orchestrators were crashed.
        violations: What was held against them.
        cells_fired: How many of the crash points fired.
        processes_started: How many processes were really started for them.
        cells: The scenarios' rows.
        crashes: The crash cells.
        timelines: What happened in failed cases.
        skipped: What could not run, with its reason.
        ids: How many ids the tests carried.
    """

    format: Literal[1]
    backend: str
    orchestrator: str
    runs: list[Run]
    crash_points: int = 0
    violations: int = 0
    cells_fired: int = 0
    processes_started: int = 0
    cells: list[Row] = []
    crashes: list[Crash] = []
    timelines: list[Timeline] = []
    skipped: list[Skipped] = []
    ids: list[Carried] = []


def encode(report: Report) -> bytes:
    """Return a document as JSON, indented, with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def read(path: str) -> Report:
    """Read a document.

    Raises:
        HarnessError: The file can't be read, or isn't a report of this format.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise HarnessError(f"{path}: isn't a report: it is over {LARGEST >> 20} MiB long")
        return msgspec.json.decode(data, type=Report)
    except OSError as error:
        raise HarnessError(f"{path}: can't be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HarnessError(f"{path}: isn't a report of format {FORMAT}: {error}") from error
