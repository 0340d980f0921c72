"""Fuzz one reader by coverage: ``python ci/fuzz.py READER [ATHERIS OPTIONS]``; ``--list`` names the readers.

Needs the package atheris, which the suite doesn't: there Hypothesis tries the same readers. A finding is a traceback,
and the input that made it is kept as ``crash-*``; it belongs into ``tests/plan/test_hostile_input.py`` as an example.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]


def main(arguments: list[str]) -> int:
    """Fuzz a reader until it is ended or finds something."""
    from hostile_readers import READERS, give  # noqa: PLC0415 - the path is set above

    if arguments[:1] == ["--list"]:
        print("\n".join(sorted(READERS)))
        return 0
    if not arguments or arguments[0] not in READERS:
        print(f"one of: {', '.join(sorted(READERS))}", file=sys.stderr)
        return 2
    import atheris  # type: ignore[import-not-found]  # noqa: PLC0415 - a package of the nightly run alone

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], *arguments[1:]], lambda data: give(arguments[0], data))
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
