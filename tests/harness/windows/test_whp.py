"""The driver of a real OpenVMM on Windows, on a made-up release, and what its probe says of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform != "win32":
    pytest.skip("needs Windows", allow_module_level=True)

from harness import images, python
from harness.backends import openvmm
from harness.backends.probes import probe
from harness.settings import Settings
from harness.world import OWN_NAMES
from stand_in import release

ROOT = Path(__file__).resolve().parents[3]
LONG = 550
"""Seconds for a pytest of its own where a process takes half a second to start."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return release(tmp_path / "made")


def command(made: Path) -> str:
    """A script has no interpreter line there."""
    return python.as_text([python.interpreter(), "-I", str(made / "bin/openvmm.exe")])


def test_the_doctor_says_in_one_line_whether_guests_can_run(made: Path) -> None:
    verdict = probe("whp")
    assert "\n" not in verdict.reason
    assert "its probe" not in verdict.reason
    asked = [sys.executable, "-m", "harness", "doctor", "--artifacts", str(made), "--require", "whp"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LONG)
    lines = [line for line in done.stdout.splitlines() if "whp" in line]
    assert "Traceback" not in done.stdout + done.stderr
    assert (done.returncode == 0) is verdict.works
    assert verdict.works or verdict.reason in " ".join(lines)
    # The others are of another system.
    assert "it takes Linux" in done.stdout


def test_a_backend_that_can_t_run_is_refused_before_any_test(made: Path) -> None:
    if probe("whp").works:
        pytest.skip("guests can run here")
    asked = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "scenarios/test_cold_boot.py"]
    options = ["--backend", "whp", "--artifacts", str(made)]
    done = subprocess.run([*asked, *options], cwd=ROOT, capture_output=True, text=True, check=False, timeout=LONG)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "a hypervisor that runs guests (whp: " in done.stderr
    assert "a distro (NVX_DISTRO=FILE.erofs; none can be made here without mkfs.erofs" in done.stderr


def test_a_scenario_runs_on_the_driver(made: Path) -> None:
    distro = images.unpack(str(made / "images")).erofs
    environment = {**os.environ, "STAND_IN": "1", "PYTHONPATH": str(ROOT / "tests/support"), "NVX_DISTRO": distro}
    options = ["--backend", "whp", "--artifacts", str(made), "--openvmm", command(made), "--timeout-scale", "4"]
    asked = [sys.executable, "-m", "pytest", "-p", "stand_in", "-p", "no:cacheprovider", "-q", *options]
    chosen = ["scenarios/test_cold_boot.py", "-k", "finds and erofs-ramfs"]
    done = subprocess.run(
        [*asked, *chosen], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=LONG
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "= scenarios on whp" in done.stdout
    assert "1 pass, 0 fail, 0 skip" in done.stdout
    assert "not seen" in done.stdout


def test_a_vmm_has_its_libraries_beside_each_of_its_names(made: Path, tmp_path: Path) -> None:
    (made / "bin/Some.DLL").write_bytes(b"library")
    (made / "bin/openvmm.pdb").write_bytes(b"symbols")
    driver = openvmm.make(Settings(backend="whp", artifacts=str(made), openvmm=command(made)))
    place = tmp_path / "test"
    place.mkdir()
    for _ in range(2):
        begun = driver.begin(str(place), token="", channel="c", evidence="e")
        begun.close()
        beside = Path(begun.needle).parent
        assert sorted(path.name.lower() for path in beside.iterdir()) == ["openvmm.exe", "some.dll"]
        # What runs can't lose a name, so no two workers run the same file.
        assert not os.path.samefile(begun.needle, made / "bin/openvmm.exe")
        # The sweep at a test's end takes none of it for something that was left.
        assert {path.name for path in place.iterdir()} <= OWN_NAMES
        (beside / "openvmm.exe").unlink()
