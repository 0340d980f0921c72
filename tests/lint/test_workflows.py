"""The workflows: pinned, bounded, with the least rights, and never on one's own machines for a fork."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="needs PyYAML")

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"
LONGEST = 90
LABELS = {
    "kvm": {"self-hosted", "linux", "kvm", "virtual-machine"},
    "mshv": {"self-hosted", "linux", "mshv", "virtual-machine"},
    "whp": {"self-hosted", "windows", "whp", "virtual-machine"},
}
ARCHIVES = {
    "kvm": "nvx-0.1.0-linux-kvm.tar.gz",
    "mshv": "nvx-0.1.0-linux-mshv.tar.gz",
    "whp": "nvx-0.1.0-windows-whp.zip",
}
NOT_FOR_FORKS = "${{ !github.event.repository.fork }}"
PIN = re.compile(r"uses: (?P<action>[\w.-]+/[\w./-]+)@(?P<digest>[0-9a-f]{40}) # v\d+\.\d+\.\d+$")
NIGHTLY = {
    "nvx-harness sweep --sweep full": "sweep.yml",
    "python ci/soak.py": "nightly-qemu.yml",
    '-m "not crash" -n 2 --sweep full': "nightly-qemu.yml",
    "nvx-harness mutants": "mutants.yml",
}
"""What takes too long for every push, and where it runs: once each."""


def load(text: str) -> dict[str, Any]:
    # The key `on` is a truth value to YAML 1.1.
    return {str(key) if key is not True else "on": value for key, value in yaml.safe_load(text).items()}


def workflows() -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(WORKFLOWS.iterdir())}


def faults(name: str, text: str) -> list[str]:
    """Return what is wrong with one workflow."""
    document = load(text)
    found: list[str] = []
    if document.get("permissions") != {"contents": "read"}:
        found.append("permissions aren't contents: read")
    uses = [line.strip() for line in text.splitlines() if "uses:" in line and "uses: ./" not in line]
    found += [f"not pinned by digest with its version: {line}" for line in uses if not PIN.search(line)]
    for key, job in document["jobs"].items():
        if "uses" in job:
            labels = str(job.get("with", {}).get("runner", ""))
        else:
            labels = str(job["runs-on"])
            if not 0 < int(job.get("timeout-minutes", 0)) <= LONGEST:
                found.append(f"{key}: no limit of at most {LONGEST} minutes")
        if ("self-hosted" in labels or "inputs.runner" in labels) and job.get("if") != NOT_FOR_FORKS:
            found.append(f"{key}: a fork would reach a machine of one's own")
        if "self-hosted" in labels and {"pull_request", "pull_request_target", "push"} & set(document["on"]):
            found.append(f"{key}: a machine of one's own for pull requests")
        found += [f"{key}: {fault}" for step in job.get("steps", ()) for fault in _step_faults(step)]
    if name.startswith("nightly-") and "schedule" not in document["on"]:
        found.append("it isn't nightly")
    return found


def _step_faults(step: dict[str, Any]) -> list[str]:
    found: list[str] = []
    if "${{" in str(step.get("run", "")):
        found.append(f"an expression in a script: {step['run']}")
    if (
        str(step.get("uses", "")).startswith("actions/checkout")
        and step["with"].get("persist-credentials") is not False
    ):
        found.append("a checkout that keeps its credentials")
    if "leftovers" in str(step.get("run", "")) and (step.get("if") != "always()" or step.get("continue-on-error")):
        found.append("leftovers that nobody looks for after a failure")
    return found


def test_every_workflow_is_sound() -> None:
    assert {name: found for name, text in workflows().items() if (found := faults(name, text))} == {}


@pytest.mark.spec("card.8")
def test_there_is_a_nightly_run_for_every_real_backend() -> None:
    names = {name for name in workflows() if name.startswith("nightly-")}
    assert names == {f"nightly-{backend}.yml" for backend in ("kvm", "mshv", "whp", "qemu")}


@pytest.mark.parametrize("backend", ["kvm", "mshv", "whp"])
def test_a_nightly_run_has_its_labels_its_archive_and_its_tag(backend: str) -> None:
    document = load(workflows()[f"nightly-{backend}.yml"])
    (job,) = document["jobs"].values()
    given = job["with"]
    assert set(yaml.safe_load(given["runner"])) == LABELS[backend]
    assert (given["backend"], given["archive"]) == (backend, ARCHIVES[backend])
    default = document["on"]["workflow_dispatch"]["inputs"]["tag"]["default"]
    assert re.fullmatch(r"v0\.1\.0-dev\.[0-9a-f]{12}", default)
    assert given["tag"] == f"${{{{ inputs.tag || '{default}' }}}}"


def test_what_every_real_run_does_is_in_one_place() -> None:
    document = load(workflows()["run-scenarios.yml"])
    job = document["jobs"]["scenarios"]
    runs = [str(step.get("run", "")) for step in job["steps"]]
    for wanted in ("ci/fetch_release.py", "doctor --require", "pytest scenarios", "leftovers --evidence"):
        assert [run for run in runs if wanted in run], wanted
    assert job["needs"] == "distro"
    made = [str(step.get("run", "")) for step in document["jobs"]["distro"]["steps"]]
    assert "nvx-harness setup distro distro.erofs" in made
    (kept,) = [step for step in job["steps"] if "upload-artifact" in str(step.get("uses"))]
    assert kept["if"] == "always()"
    assert kept["with"]["path"].split() == ["report.json", "evidence"]


def runs_of(document: dict[str, Any]) -> list[str]:
    steps = [step for job in document["jobs"].values() for step in job.get("steps", [])]
    return [str(step.get("run", "")) for step in steps]


@pytest.mark.parametrize("command", NIGHTLY)
def test_what_takes_long_runs_nightly_on_the_fake_and_once(command: str) -> None:
    found = [file for file, text in workflows().items() for run in runs_of(load(text)) if command in run]
    assert found == [NIGHTLY[command]]
    assert "schedule" in load(workflows()[NIGHTLY[command]])["on"]


def test_zizmor_finds_nothing() -> None:
    program = shutil.which("zizmor", path=str(Path(sys.executable).parent)) or shutil.which("zizmor")
    if program is None:
        pytest.skip("needs zizmor (pip install zizmor)")
    command = [program, "--offline", "--no-progress", "--min-severity", "medium", str(WORKFLOWS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_are_what_the_schema_of_github_says(tmp_path: Path) -> None:
    program = shutil.which("check-jsonschema", path=str(Path(sys.executable).parent)) or shutil.which(
        "check-jsonschema"
    )
    if program is None:
        pytest.skip("needs check-jsonschema (pip install check-jsonschema)")
    command = [program, "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run(
        [*command, *sorted(WORKFLOWS.glob("*.yml"))], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    misspelt = tmp_path / "x.yml"
    misspelt.write_text(SOUND.replace("runs-on:", "run-on:"))
    done = subprocess.run([*command, misspelt], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1


SOUND = """
name: nightly-x
on:
  schedule:
    - cron: "1 1 * * *"
permissions:
  contents: read
jobs:
  x:
    if: ${{ !github.event.repository.fork }}
    runs-on: [self-hosted, linux, kvm]
    timeout-minutes: 90
    steps:
      - uses: actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2
        with:
          persist-credentials: false
      - name: Look
        if: always()
        run: nvx-harness leftovers --evidence evidence
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  contents: read", "  contents: write", "permissions aren't"),
        ("@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2", "@v4", "not pinned"),
        (" # v4.2.2", "", "not pinned"),
        ("timeout-minutes: 90", "timeout-minutes: 120", "no limit"),
        ("    timeout-minutes: 90\n", "", "no limit"),
        ("    if: ${{ !github.event.repository.fork }}\n", "", "a fork would reach"),
        ("on:\n", "on:\n  pull_request:\n", "for pull requests"),
        ("persist-credentials: false", "fetch-depth: 1", "keeps its credentials"),
        ("run: nvx-harness", "run: echo ${{ github.ref }}; nvx-harness", "an expression in a script"),
        ("        if: always()\n", "", "leftovers that nobody looks for"),
        ('  schedule:\n    - cron: "1 1 * * *"\n', "  workflow_dispatch:\n", "it isn't nightly"),
    ],
)
def test_a_fault_in_a_workflow_is_found(old: str, new: str, said: str) -> None:
    assert faults("nightly-x.yml", SOUND) == []
    assert old in SOUND
    found = faults("nightly-x.yml", SOUND.replace(old, new))
    assert [fault for fault in found if said in fault], found
