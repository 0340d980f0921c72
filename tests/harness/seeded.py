"""Copies of the reference with a fault in them, to show that the harness finds it."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness import python

ROOT = Path(__file__).resolve().parents[2]

SEEDED = {
    "marker after the spawn": (
        "nvx_ref/store/launch.py",
        "        directory.replace(names.JOURNAL, encode(journal, store.path_of(names.JOURNAL)), durable=False)\n",
        "",
    ),
    "journal forgotten": (
        "nvx_ref/store/recovery.py",
        "    journal = store.journal()\n",
        "    store.directory.remove(names.JOURNAL)\n    journal = store.journal()\n",
    ),
    "a code of its own": (
        "nvx_ref/errors.py",
        '    code = "Refused"\n',
        '    code = "refuse"\n',
    ),
    "exited is called live": (
        "nvx_ref/verdicts.py",
        '        return Status("exited", "its VM has exited")\n',
        '        return Status("live")\n',
    ),
}
"""File, text, and what takes its place."""


def seed(name: str, directory: Path) -> Path:
    """Copy the reference with a fault, and return what has to be first on the path."""
    return put(*SEEDED[name], directory)


def put(where: str, text: str, instead: str, directory: Path) -> Path:
    """Copy the reference with one text in the place of another, and return what has to be first on the path."""
    shutil.copytree(ROOT / "nvx_ref", directory / "nvx_ref", ignore=shutil.ignore_patterns("__pycache__"))
    whole = (directory / where).read_text()
    assert whole.count(text) == 1, f"{where} has changed: seed the fault anew"
    (directory / where).write_text(whole.replace(text, instead))
    return directory


def faulty(name: str, directory: Path) -> str:
    """Return the command of an orchestrator with a fault."""
    return python.as_text(
        python.write_script(
            str(directory / "faulty.py"),
            packages=("harness", "msgspec"),
            first=[str(seed(name, directory))],
            body="from harness.sut.reference import main\n\nsys.exit(main())\n",
        )
    )
