"""The package as a whole: what it costs to import, and where it doesn't run."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str) -> str:
    ended = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return ended.stdout.strip()


@pytest.mark.parametrize("module", ["nvx_ref.process", "nvx_ref.orchestrator"])
def test_an_import_brings_in_nothing_heavy(module: str) -> None:
    heavy = ["argparse", "asyncio", "dataclasses", "pathlib", "selectors", "shutil", "signal", "socket", "subprocess"]
    heavy += ["hashlib", "ipaddress", "json", "logging", "tempfile"]
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    assert run(code) == "[]"


@pytest.mark.spec("656.spawn.k")
@pytest.mark.parametrize("system", ["darwin", "freebsd14"])
def test_another_system_is_refused_in_plain_words(system: str) -> None:
    code = f"""
import sys
from nvx_ref.errors import NvxError
sys.platform = {system!r}
try:
    import nvx_ref.platform
except NvxError as error:
    print(error.code, error)
"""
    answer = run(code)
    assert answer.startswith(f"Refused platform {system}: ")
    assert answer.endswith("use a Linux or Windows host")
