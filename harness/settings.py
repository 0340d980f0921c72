"""What a run was asked for: the options of the plugin, checked, as one value."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from harness.errors import HarnessError
from harness.platform import LONGEST_RUNS, OWN_GOLDENS, interrupts_held, short_root, split_command
from harness.sharding import WHOLE, Shard

BACKENDS = ("fake", "kvm", "mshv", "whp", "qemu")


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one run.

    Attributes:
        backend: One of :data:`BACKENDS`.
        artifacts: `--artifacts`, a release or checkout directory of a real OpenVMM.
        openvmm: `--openvmm`, a whole command that stands in for the backend's.
        orchestrator: `--orchestrator`, a program that speaks the JSON lines; None is the bundled reference.
        sweep: ``quick`` or ``full``.
        timeout_scale: The factor on every deadline.
        update_goldens: Whether goldens are written instead of compared.
        directory: The session's directory, short and not made yet.
        shard: `--shard`, which part of the run is this machine's.
    """

    backend: str = "fake"
    artifacts: str | None = None
    openvmm: str | None = None
    orchestrator: str | None = None
    sweep: str = "quick"
    timeout_scale: float = 1.0
    update_goldens: bool = False
    directory: str = ""
    shard: Shard = WHOLE


def factor(text: str) -> float:
    """Return a factor on deadlines.

    Raises:
        ValueError: It is none; the text says so.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{text!r} isn't a number over 0, and finite")
    return value


def orchestrator_words(settings: Settings) -> list[str]:
    """Return the command of the other orchestrator, word by word.

    It is started in a directory of the test's own, so a word that names a file from here is made absolute.

    Raises:
        ValueError: A quotation isn't closed.
    """
    words = split_command(settings.orchestrator or "")
    return [os.path.abspath(word) if os.path.isfile(word) else word for word in words]


def require_program(settings: Settings) -> None:
    """Check that the other orchestrator, if there is one, can be started.

    Raises:
        HarnessError: It can't.
    """
    if settings.orchestrator is None:
        return
    try:
        program = next(iter(orchestrator_words(settings)), "")
    except ValueError as error:
        raise HarnessError(f"--orchestrator: {error}") from error
    if shutil.which(program) is not None:
        return
    why = f"no program {program!r} to start"
    if os.path.isfile(program):
        why = f"{program} isn't executable; name what runs it before it, or make it executable"
    elif os.path.isdir(program):
        why = f"{program} is a directory; name the program in it"
    raise HarnessError(f"--orchestrator: {why}")


def useless(settings: Settings) -> str | None:
    """Return which options guests of this backend can't use, None if there are none."""
    if settings.backend == "fake" and (settings.artifacts or settings.openvmm):
        return "--artifacts and --openvmm are for real backends: the fake brings its own"
    return None


NEEDED = 16 << 20
"""Bytes that a run takes at least: images, artifacts, and what tests keep for a moment."""

RUNS = "NVX_RUNS"
"""The environment variable that names where runs keep their files, evidence included; a short path."""


def runs_directory() -> str:
    """Return where runs keep their files."""
    return os.environ.get(RUNS) or short_root()


def require_runs(session: str) -> None:
    """Make a directory beside a run's own, which says whether runs can keep their files where they are told to.

    The run's own isn't touched: another process of the run may be on its way into it.

    Raises:
        HarnessError: They can't: the path is too long for the sockets below it, or can't be written.
    """
    place = os.path.dirname(session) or os.curdir
    named = RUNS if os.environ.get(RUNS) else "the directory of temporary files"
    if not is_text(place):
        raise HarnessError(f"{named}: {place!a}: orchestrators are told of it in UTF-8; name a path that is that")
    if len(os.fsencode(place)) > LONGEST_RUNS:
        raise HarnessError(f"{named}: {place}: sockets are made below it; name a path of at most {LONGEST_RUNS} bytes")
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)
        trial = _new_directory(place)
        with interrupts_held():
            os.mkdir(trial, 0o700)
            os.rmdir(trial)
        free = shutil.disk_usage(place).free
    except OSError as error:
        raise HarnessError(f"{named}: {place}: {error.strerror}; name a directory that can be written") from error
    if free < NEEDED:
        left = f"{free >> 10} KiB are free, and a run needs {NEEDED >> 20} MiB"
        raise HarnessError(f"{named}: {place}: {left}; name another place by {RUNS}")


def is_text(path: str) -> bool:
    """Tell whether a path can be said in UTF-8: one that isn't, or that this locale can't read, has stand-ins in it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def session_directory() -> str:
    """Return the name of a directory that nobody has, for all the files of one run."""
    return _new_directory(runs_directory())


def _new_directory(place: str) -> str:
    return os.path.join(place, f"nvx-{os.urandom(4).hex()}")


def own_goldens(backend: str = "fake") -> tuple[str, ...]:
    """Return the directories below the goldens for texts that only this backend says, or only this system, in turn."""
    return (*(() if backend == "fake" else (backend,)), *((OWN_GOLDENS,) if OWN_GOLDENS else ()))
