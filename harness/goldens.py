"""Goldens: committed texts that outputs must equal, with what differs from run to run replaced by names.

`--update-goldens` writes them; a difference is shown as a unified diff. The records of released formats below
``store/v1`` are history: nothing rewrites them.
"""

from __future__ import annotations

import difflib
import os
import re
from typing import TYPE_CHECKING

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FROZEN = "store" + os.sep + "v1"

PATTERNS = (
    (re.compile(r"/proc/self/fd/\d+"), "/proc/self/fd/<N>"),
    (re.compile(r"\bsha256:[0-9a-f]{64}\b"), "sha256:<DIGEST>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\b(?=\")"), "<UUID4>"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "<DIGEST>"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "<ID>"),
    (re.compile(r"\.tmp[A-Za-z0-9]{6}\b"), ".tmp<6>"),
    (
        re.compile(
            r'("(?:pid|startTime|pidNamespace|pidfsInode|volume|file|modified|changed|device|inode|length)": )("?)\w+\2'
        ),
        r"\1<NUMBER>",
    ),
    (re.compile(r'("boot": )"[^"]*"'), r"\1<BOOT>"),
    (re.compile(r"\b\d+ bytes hashed\b"), "<NUMBER> bytes hashed"),
    # Each backend has its own; what it is doesn't matter to the text.
    (re.compile(r'("openvmm": )\[[^\]]*\]'), r"\1[<OPENVMM>]"),
    # Recorded where the kernel has them.
    (re.compile(r',\s*"(?:pidNamespace|pidfsInode)": <NUMBER>'), ""),
    (re.compile(r"\bpid \d+\b"), "pid <PID>"),
    (re.compile(r"\b\d+\.\d+ ?s\b"), "<SECONDS>"),
)
"""What is replaced wherever it stands, in this order."""

BELOW = re.compile(r"<(?:ROOT|ARTIFACTS)>(?:\\{1,2}[\w.+-]+)+")
"""A path below a named place, as Windows writes it, in JSON or not: its separators are written as everywhere."""


class Goldens:
    """The goldens of one checkout.

    Args:
        directory: Where they are.
        update: Whether to write instead of comparing.
        own: The directories in there with the texts that aren't the same everywhere: the first that has one counts, and
            the first of all is the one that is written to.
    """

    def __init__(self, directory: str, *, update: bool = False, own: Sequence[str] = ()) -> None:
        self._directory = directory
        self._directories = [*(os.path.join(directory, name) for name in own), directory]
        self._update = update
        self._places: list[tuple[str, str]] = []

    def name(self, place: str, name: str) -> None:
        """Replace a path (or any text) of this run by a name, longest first."""
        self._places.append((place, name))
        self._places.sort(key=lambda pair: -len(pair[0]))

    def normal(self, text: str) -> str:
        """Return the text with everything replaced that differs from run to run."""
        for place, name in self._places:
            text = text.replace(place, name).replace(place.replace("\\", "\\\\"), name)
        for pattern, replacement in PATTERNS:
            text = pattern.sub(replacement, text)
        return BELOW.sub(lambda found: re.sub(r"\\+", "/", found[0]), text)

    def check(self, name: str, text: str | Iterable[str], *, unseen: str = "") -> None:
        """Compare a text, or lines, with a golden.

        Args:
            name: The golden's name below the directory.
            text: What was found; normalised before it is compared.
            unseen: A pattern of lines that aren't visible on this backend, and are left out of the golden; empty: none.

        Raises:
            AssertionError: They differ, or there is no such golden.
            HarnessError: A frozen golden would be written.
        """
        lines = text if isinstance(text, str) else "".join(f"{line}\n" for line in text)
        found = self.normal(lines if lines.endswith("\n") or not lines else f"{lines}\n")
        paths = [os.path.join(place, *name.split("/")) for place in self._directories]
        if self._update and not unseen:
            self._update_one(*paths, text=found)
            return
        path = next((path for path in paths if os.path.exists(path)), paths[-1])
        try:
            with open(path, encoding="utf-8", newline="") as file:
                kept = [line for line in file if not unseen or re.match(unseen, line) is None]
            expected = "".join(kept)
        except FileNotFoundError:
            raise AssertionError(f"no golden {name}; --update-goldens would write:\n{found}") from None
        if expected != found:
            lines_of = (expected.splitlines(keepends=True), found.splitlines(keepends=True))
            diff = "".join(difflib.unified_diff(*lines_of, f"goldens/{name}", "found"))
            raise AssertionError(f"differs from its golden {name} (--update-goldens writes it):\n{diff}")

    def _update_one(self, path: str, *others: str, text: str) -> None:
        """Write a golden: one's own only where the one that counts without it says something else."""
        common = next((other for other in others if os.path.exists(other)), None)
        if common is not None:
            with open(common, encoding="utf-8", newline="") as file:
                if file.read() == text:
                    if os.path.exists(path):
                        os.unlink(path)
                    return
        self._write(path, text)

    def _write(self, path: str, text: str) -> None:
        if os.path.relpath(path, self._directory).startswith(FROZEN + os.sep):
            raise HarnessError(f"{path} is a record of a released format and never rewritten")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)
