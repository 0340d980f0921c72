"""What the command does with words that it cannot use: one line, the right status, nothing left behind."""

from __future__ import annotations

import os
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
        (("--mount", "/a"), "error: --mount: '/a' isn't GUEST,HOST[,ro|rw]"),
        (("--mount", "/a,/b", "--mount-write", "/c"), "/c: it lies in no --mount"),
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


PIECES = ("--openvmm", "o", "--kernel", "k", "--initrd", "i", "--manifest", "m")
ALL_SET = {"NVX_OPENVMM": "o", "NVX_KERNEL": "ek", "NVX_INITRD": "ei", "NVX_MANIFEST": "em"}


@pytest.mark.parametrize(
    ("words", "variables", "fragment"),
    [
        (PIECES, {"NVX_ARTIFACTS_DIR": "env"}, f"{os.sep}k, "),
        (("--artifacts", "typed"), ALL_SET, f"{os.sep}typed: there is no such directory"),
        (("--kernel", "k"), ALL_SET | {"NVX_ARTIFACTS_DIR": "env"}, f"{os.sep}k, "),
        (("--kernel", "k"), {"NVX_ARTIFACTS_DIR": "env"}, "--openvmm, --initrd, --manifest missing"),
        ((), ALL_SET | {"NVX_ARTIFACTS_DIR": "env"}, f"{os.sep}ek, "),
        ((), {"NVX_ARTIFACTS_DIR": "env"}, f"{os.sep}env: there is no such directory"),
        ((), {"NVX_ARTIFACTS_DIR": "env", "NVX_KERNEL": "ek"}, "--artifacts: it excludes --kernel"),
        (("--artifacts", "typed", "--kernel", "k"), ALL_SET, "--artifacts: it excludes --kernel\n"),
    ],
)
def test_the_command_line_wins_over_the_environment(
    words: tuple[str, ...],
    variables: dict[str, str],
    fragment: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NVX_ARTIFACTS_DIR", *ALL_SET):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    run = nvx_ref(*RUN, "--dry-run", *words)
    assert run.returncode == 1
    assert fragment in run.stderr


def test_commands_are_listed_in_the_order_of_a_life() -> None:
    lines = nvx_ref("--help").stdout.split("Commands:\n")[1].splitlines()
    assert [line.split()[0] for line in lines] == [
        "provision", "start", "exec", "stop", "deprovision", "status", "run", "image",
    ]  # fmt: skip
    assert not any(line.endswith("...") for line in lines)
