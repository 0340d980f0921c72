"""What the command does with words that it cannot use: one line, the right status, nothing left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = ("provision", "start", "exec", "stop", "deprovision", "status", "run", "image")


def nvx_ref(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nvx_ref", *words], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("words", [("--help",), *((command, "--help") for command in COMMANDS)])
def test_help_says_what_it_does(words: tuple[str, ...]) -> None:
    run = nvx_ref(*words)
    assert run.returncode == 0
    assert run.stdout.startswith("Usage: nvx-ref ")
    assert run.stderr == ""


@pytest.mark.parametrize(
    "words",
    [
        ("frobnicate",),
        ("start",),
        ("start", "--state-dir", "x", "--no-such-option"),
        ("start", "--state-dir", "x", "--timeout", "soon"),
        ("start", "--state-dir", "x", "--timeout", "0"),
        ("start", "--state-dir", "x", "--timeout", "nan"),
        ("start", "--state-dir", "x", "--timeout", "1e300"),
        ("stop", "--state-dir", "x", "--force-within", "-1"),
        ("exec", "--state-dir", "x"),
        ("exec", "--state-dir", "x", "--exec-timeout-ms", "4294967296", "--", "/bin/true"),
        ("provision", "--state-dir", "x", "--distro", "d", "--format", "vhd"),
        ("provision", "--state-dir", "x", "--distro", "d", "--format", "erofs", "--workload-user", "0:0"),
        ("provision", "--state-dir", "x", "--distro", "d", "--format", "erofs", "--workload-user", "me"),
        ("run", "--state-dir", "x", "--distro", "d", "--format", "erofs", "--dry-run"),
    ],
)
def test_a_usage_error_is_status_2(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = nvx_ref(*words)
    assert run.returncode == 2, run.stderr
    assert run.stdout == ""
    assert "Usage: nvx-ref" in run.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("directory", "fragment"),
    [
        ("", "empty"),
        ("a/../b", ".."),
        (".hidden", "name"),
        ("with space", "name"),
        ("n" * 65, "name"),
        ("n" * 300, "name"),
        ("missing", "provisioned"),
        ("/", "name"),
    ],
)
@pytest.mark.parametrize("command", ["start", "stop", "status", "deprovision"])
def test_a_directory_that_is_none_is_refused(
    command: str, directory: str, fragment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = nvx_ref(command, "--state-dir", directory)
    assert run.returncode == 1, run.stderr
    assert run.stdout == ""
    assert run.stderr.startswith("error: ")
    assert run.stderr.count("\n") == 1
    assert fragment in run.stderr
    assert list(tmp_path.iterdir()) == []


RUN = ("run", "--distro", "d", "--format", "erofs", "--ram-upper")


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (("--explain",), "error: --explain: it needs --dry-run"),
        (("--mount-deny", "x"), "error: --mount-deny: it needs a --mount"),
        (("--mount-owner", "caller"), "error: --mount-owner: it needs a --mount"),
        (("--mount", "/a"), "error: mount: '/a' isn't GUEST,HOST[,ro|rw]"),
        (("--mount", "/a,/b", "--mount-write", "/c"), "error: --mount-write /c: it lies in no --mount"),
        (("--net", "10.0.0.2/24"), "error: --net: --net and --network-profile portable go together"),
        (("--network-profile", "portable"), "error: --net: --net and --network-profile portable go together"),
        (("--network-egress", "allow"), "error: --net: the network's flags need"),
        (("--host-loopback", "allow"), "error: --net: the network's flags need"),
        (("--network-egress-policy-file", "f", "--network-egress", "deny"), "excludes --network-egress"),
        (("--network-egress-policy-file", "missing"), "error: --network-egress-policy-file missing: there is no such"),
        (("--outcome-report", "."), "error: --outcome-report"),
        (("--outcome-report", "no/where"), "its directory is missing"),
        # The entrypoint is checked before the network's pairing, and both before any file is looked for.
        (("--entrypoint", "/lib/systemd/systemd", "--net", "10.0.0.2/24"), "systemd is not an entrypoint"),
        (("--scratch", "s", "--entrypoint", "/lib/systemd/systemd"), "exactly one of --scratch and --ram-upper"),
    ],
)
def test_flags_that_need_or_exclude_others_are_refused_before_any_file(
    words: tuple[str, ...], fragment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = nvx_ref(*RUN, *words)
    assert (run.returncode, run.stdout) == (1, "")
    assert fragment in run.stderr
    assert run.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_the_package_s() -> None:
    run = nvx_ref("--version")
    assert run.returncode == 0
    assert run.stdout == "nvx-ref, version 0.1.0\n"
