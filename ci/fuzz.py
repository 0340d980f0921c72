"""Fuzz the readers of what others write.

``python ci/fuzz.py --list`` names them, ``python ci/fuzz.py READER [LIBFUZZER OPTIONS]`` fuzzes one by coverage until
it is ended or finds something, ``python ci/fuzz.py --all SECONDS`` gives each its seconds and fails on any finding.

By coverage needs the package atheris (the extra ``nightly``). Without it the same inputs are changed at random, which
is said. A finding is a traceback; the input that made it is kept in ``fuzz-findings/`` and belongs into
``tests/plan/test_hostile_input.py`` as an example.
"""

from __future__ import annotations

import hashlib
import importlib.util
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FINDINGS = ROOT / "fuzz-findings"
MAX_LENGTH = 32 << 10
MEMORY_MIB = 1024
INPUT_SECONDS = 10
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]


def fuzz_all(seconds: int) -> int:
    """Fuzz every reader for so many seconds, and return how many had findings."""
    from hostile_readers import READERS, seeds  # noqa: PLC0415 - the path is set above

    guided = importlib.util.find_spec("atheris") is not None
    print("by coverage (atheris)" if guided else "at random: the package atheris, which guides by coverage, is missing")
    failed = 0
    for name in sorted(READERS):
        if guided:
            ended, told = _guided(name, seconds, seeds(name))
        else:
            ended, told = _at_random(name, seconds, seeds(name))
        failed += not ended
        print(f"{'ok  ' if ended else 'FAIL'} {name}: {told}", flush=True)
    return failed


def _guided(name: str, seconds: int, samples: list[bytes]) -> tuple[bool, str]:
    FINDINGS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as corpus:
        for sample in samples:
            (Path(corpus) / hashlib.sha256(sample).hexdigest()[:16]).write_bytes(sample)
        limits = [f"-max_total_time={seconds}", f"-max_len={MAX_LENGTH}", f"-rss_limit_mb={MEMORY_MIB}"]
        limits += [
            f"-timeout={INPUT_SECONDS}",
            f"-artifact_prefix={FINDINGS}/{name.replace(' ', '-')}-",
            "-verbosity=1",
        ]
        run = subprocess.run(
            [sys.executable, __file__, name, *limits, corpus], capture_output=True, text=True, check=False
        )
    lines = run.stderr.splitlines() + run.stdout.splitlines()
    if run.returncode:
        return False, "\n".join(lines[-40:])
    done = [line for line in lines if line.startswith("Done ") or "DONE" in line]
    return True, " ".join(" ".join(done).split()) or "ended"


def _at_random(name: str, seconds: int, samples: list[bytes]) -> tuple[bool, str]:
    from hostile_readers import give  # noqa: PLC0415 - the path is set above

    chance = random.Random(name)  # noqa: S311 - nothing secret
    until, runs = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        data = _changed(chance, chance.choice(samples))
        runs += 1
        try:
            give(name, data)
        except Exception as fault:  # noqa: BLE001 - whatever it is, it is the finding
            FINDINGS.mkdir(exist_ok=True)
            place = FINDINGS / f"{name.replace(' ', '-')}-{hashlib.sha256(data).hexdigest()[:16]}"
            place.write_bytes(data)
            return False, f"{type(fault).__name__}: {fault}; kept as {place}"
    return True, f"{runs} runs"


def _changed(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        place = chance.randint(0, len(changed))
        piece = chance.randbytes(chance.choice((1, 1, 2, 4, 8)))
        how = chance.randrange(4)
        if how == 0:
            changed[place : place + len(piece)] = piece
        elif how == 1:
            changed[place:place] = piece
        elif how == 2:  # noqa: PLR2004 - the third of four
            del changed[place : place + len(piece)]
        else:
            start = chance.randint(0, len(changed))
            changed[place:place] = changed[start : start + chance.randint(0, 64)]
    return bytes(changed[:MAX_LENGTH])


def main(arguments: list[str]) -> int:
    """Do what the arguments say and return the exit status."""
    from hostile_readers import READERS, give  # noqa: PLC0415 - the path is set above

    if arguments[:1] == ["--list"]:
        print("\n".join(sorted(READERS)))
        return 0
    if arguments[:1] == ["--all"] and len(arguments) == 2 and arguments[1].isdecimal():  # noqa: PLR2004
        return 1 if fuzz_all(int(arguments[1])) else 0
    if not arguments or arguments[0] not in READERS:
        print(f"--list, --all SECONDS, or one of: {', '.join(sorted(READERS))}", file=sys.stderr)
        return 2
    import atheris  # type: ignore[import-not-found]  # noqa: PLC0415 - a package of the nightly run alone

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], *arguments[1:]], lambda data: give(arguments[0], data))
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
