"""What a crash leaves, seen by witnesses, and what each step allows: `goldens/allowed_states.json`.

A state is a set of words: what is in the sandbox's directory, by kind, and whether its VMM is alive. The golden says
for each step of each scene which states may be found right *at* it, which *later*, up to the next step, and what the
*restart* may find and leave: the verdict of the next orchestrator's reattach, then a state again. What stands under
*again* may be found, and left by the restart, where the step was the second crash. A word in brackets may be missing.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from harness.errors import Finding, HarnessError
from harness.outputs import said_of
from harness.sut.protocol import mapping, words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.crash.stage import Stage
    from harness.witness.processes import Seen

BEGIN = "begin"
"""Stands for the step before the first one."""

DONE, FAILED = "done", "failed"
"""Stand for the step after the last one: an operation that succeeded, or that an injected error failed."""

RECOVERY = "recovery"
"""The golden's scene of steps that any operation passes after a crash of the one before it."""

AT, LATER, RESTART, AGAIN = "at", "later", "restart", "again"

SOCKET = "socket"

_NAMES = {
    "config.json": "config",
    "lifecycle.lock": "lock",
    "control.capability": "capability",
    "control.sock": SOCKET,
    "openvmm.log": "log",
    "console.log": "console",
    "outcome.json": "outcome",
}
_STAGING = re.compile(r"\.tmp[A-Za-z0-9]{6}")
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{32}\.tmp")


@dataclass(frozen=True, slots=True)
class State:
    """What is there at one moment.

    Attributes:
        words: The words of it.
        vmms: The VMMs alive.
    """

    words: frozenset[str]
    vmms: tuple[Seen, ...]

    def __str__(self) -> str:
        return " ".join(sorted(self.words))


def observe(stage: Stage, where: str, *, alone: bool = False) -> State:
    """Look at a sandbox, and hold what is there against what must be true at any moment.

    Args:
        stage: Where it is.
        where: What failure texts call the moment.
        alone: Whether a look has just found no VMM alive, so that another one would be the same again.

    Raises:
        Finding: More than one VMM is alive, one is neither recorded nor of an interrupted launch, or a record is torn.
    """
    vmms = () if alone else tuple(stage.world.processes.vmms())
    if len(vmms) > 1:
        raise Finding(where, expected="at most one VMM alive", found="; ".join(str(one) for one in vmms))
    found, records = _directory(stage.box.directory, where, keeps_store=stage.keeps_store)
    if vmms:
        found.add("vmm")
        if stage.keeps_store:
            _require_known(vmms[0], records, where)
    return State(frozenset(found), vmms)


def is_unproven(state: State) -> bool:
    """Tell whether nothing said yet what the VMM is that was alive: neither its record nor its endpoint."""
    return "vmm" in state.words and "journal" in state.words and SOCKET not in state.words


def _directory(path: str, where: str, *, keeps_store: bool) -> tuple[set[str], dict[str, dict[str, object]]]:
    try:
        entries = os.listdir(path)
    except FileNotFoundError:
        return {"absent"}, {}
    found = {"empty"} if not entries else set[str]()
    records: dict[str, dict[str, object]] = {}
    for entry in entries:
        if entry in {"launch.json", "runtime.json"} and keeps_store:
            records[entry] = _record(os.path.join(path, entry), where)
        else:
            found.add(_word(entry))
    if "launch.json" in records:
        found.add("journal+process" if "process" in records["launch.json"] else "journal")
    if "runtime.json" in records:
        found.add("runtime")
    return found, records


def _word(entry: str) -> str:
    if entry in _NAMES:
        return _NAMES[entry]
    if _STAGING.fullmatch(entry):
        return "staging"
    temporary = _TEMPORARY.fullmatch(entry)
    return f"temporary:{temporary[1]}" if temporary else f"foreign:{entry}"


def _record(path: str, where: str) -> dict[str, object]:
    with open(path, "rb") as file:
        raw = file.read()
    try:
        record = mapping(json.loads(raw))
    except ValueError:
        record = {}
    if not isinstance(record.get("launchId"), str):
        raise Finding(where, expected=f"a whole {os.path.basename(path)}", found=repr(raw[:200]))
    return record


def _require_known(vmm: Seen, records: dict[str, dict[str, object]], where: str) -> None:
    """A VMM is recorded, or of an interrupted launch: never one that nobody knows."""
    named = {name: mapping(record.get("process")).get("pid") for name, record in records.items()}
    if vmm.pin.pid in named.values() or ("launch.json" in records and named["launch.json"] is None):
        return
    raise Finding(where, expected="a record of the VMM that is alive", found=f"{vmm}; records name {named}")


class Allowed:
    """The golden, read.

    Args:
        path: `goldens/allowed_states.json`.
        without: Words of things that this system doesn't make, which are there only if something else made them.

    Raises:
        HarnessError: It isn't one.
    """

    def __init__(self, path: str, *, without: frozenset[str] = frozenset()) -> None:
        self.path = path
        self._without = without
        try:
            with open(path, encoding="utf-8") as file:
                self._scenes = {name: mapping(steps) for name, steps in mapping(json.load(file)).items()}
        except OSError as error:
            raise HarnessError(said_of(error)) from error
        except ValueError as error:
            raise HarnessError(f"{path}: {error}") from error

    def scenes(self) -> list[str]:
        """Return the scenes of which anything is said."""
        return [*self._scenes]

    def steps(self, scene: str) -> list[str]:
        """Return the steps of a scene of which anything is said."""
        return [*self._scenes[scene]]

    def with_vmm(self, scene: str) -> list[str]:
        """Return the steps of a scene from the first one on at which there may be a VMM."""
        whole = self.steps(scene)
        said = [" ".join((*self._patterns(scene, step, AT), *self._patterns(scene, step, LATER))) for step in whole]
        first = next((place for place, text in enumerate(said) if "vmm" in text), len(whole))
        return [step for step in whole[first:] if "." in step]

    def knows(self, scene: str, step: str) -> bool:
        """Tell whether anything is said of a step."""
        return step in self._scenes.get(scene, {}) or step in self._scenes.get(RECOVERY, {})

    def check(self, scene: str, steps: Sequence[str], found: str, *, where: str, kinds: tuple[str, ...]) -> None:
        """Hold a state against what is allowed at any of some steps; of a step of which nothing is said, anything is.

        Raises:
            Finding: It isn't allowed at any of them.
        """
        if not all(self.knows(scene, step) for step in steps):
            return
        patterns = [pattern for step in steps for kind in kinds for pattern in self._patterns(scene, step, kind)]
        if not any(matches(pattern, found) for pattern in patterns):
            raise Finding(where, expected=" or ".join(f"({pattern})" for pattern in patterns), found=f"({found})")

    def _here(self, pattern: str) -> str:
        return " ".join(f"[{word}]" if word in self._without else word for word in pattern.split(" "))

    def allows(self, scene: str, steps: Sequence[str], verdict: str) -> bool:
        """Tell whether a restart may come to a verdict."""
        patterns = [pattern for step in steps for pattern in self._patterns(scene, step, RESTART)]
        return any(pattern.partition(": ")[0] == verdict for pattern in patterns)

    def _patterns(self, scene: str, step: str, kind: str) -> tuple[str, ...]:
        said = self._scenes.get(scene, {}).get(step) or self._scenes.get(RECOVERY, {}).get(step)
        same = mapping(said).get("as")
        if isinstance(same, str):
            return self._patterns(scene, same, kind)
        return tuple(self._here(pattern) for pattern in words(cast("dict[str, object]", said).get(kind)))


def matches(pattern: str, found: str) -> bool:
    """Tell whether a state, or a verdict and a state, is one that a pattern means; a state alone fits any verdict."""
    verdict, colon, rest = pattern.rpartition(": ")
    said, _, state = found.rpartition(": ")
    if colon and said and verdict != said:
        return False
    given = rest.split()
    required = {word for word in given if not word.startswith("[")}
    optional = {word.strip("[]") for word in given if word.startswith("[")}
    there = set(state.split())
    return required <= there <= required | optional
