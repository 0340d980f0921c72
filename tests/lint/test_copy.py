"""Whoever copies the reference needs it, its two packages and the standard library."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ci.write_requirements import ROOT

LOOK = """
import importlib, os, sys
parent, *packages = sys.argv[1:]
sys.path[:0] = [parent]
sys.path += packages
for directory, _, names in os.walk(os.path.join(parent, "nvx_ref")):
    for name in names:
        path = os.path.relpath(os.path.join(directory, name), parent)
        if name.endswith(".py") and "windows" not in path and name != "__main__.py":
            importlib.import_module(path[:-3].replace(os.sep, ".").removesuffix(".__init__"))
import nvx_ref.cli.commands
assert nvx_ref.__file__.startswith(parent), nvx_ref.__file__
print(*sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - {"__main__"}))
"""


@pytest.mark.spec("card.7")
def test_a_copy_of_the_reference_stands_alone(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "nvx_ref", tmp_path / "nvx_ref", ignore=shutil.ignore_patterns("__pycache__"))
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("click", "msgspec"):
        found = next(path for path in map(Path, sys.path) if (path / name / "__init__.py").is_file())
        (packages / name).symlink_to(found / name)
    command = [sys.executable, "-I", "-S", "-c", LOOK, str(tmp_path), str(packages)]
    looked = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    assert looked.stdout.split() == ["click", "msgspec", "nvx_ref"]
