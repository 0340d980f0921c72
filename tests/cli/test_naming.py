"""Errors name the option or file that the user typed, never a field of the library's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvx_ref.cli.output import why_ended
from nvx_ref.cli.program import run_command
from nvx_ref.nvxc import ExecRequest, ExecResult
from nvx_ref.orchestrator import Orchestrator

RUN = ("run", "--dry-run", "--distro", "d", "--format", "erofs", "--ram-upper")
NET = ("--net", "10.0.0.2/24", "--network-profile", "portable")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--scratch", "s"), "--scratch, --ram-upper"),
        (("--identity", "1234"), "--identity"),
        (("--hostname", "A"), "--hostname"),
        (("--entrypoint", "sh"), "--entrypoint"),
        (("--arg", ""), "--arg"),
        (("--cmdline", "nvx_x"), "--cmdline"),
        (("--memory-mib", "99999999999"), "--memory-mib"),
        (("--memory-max", "99999999999999999999"), "--memory-max"),
        (("--pids-max", "99999999999"), "--pids-max"),
        ((), "--artifacts"),
        (
            ("--openvmm", "o", "--kernel", "/none/k", "--initrd", "/none/i", "--manifest", "/none/m"),
            "--kernel, --initrd",
        ),
        (("--mount", "/a"), "--mount"),
        (("--mount", "/x,relative/../y"), "--mount"),
        ((*NET, "--network-egress", "deny", "--network-egress-allow", "10.0.0.0/8:tcp:0"), "--network-egress-allow"),
        ((*NET, "--network-egress", "allow", "--network-egress-deny", "10.0.0.0/8:tcp:0"), "--network-egress-deny"),
        ((*NET, "--network-proxy", "10.0.0.1"), "--network-proxy"),
        (("--net", "10.0.0.0/24", "--network-profile", "portable"), "--net"),
        ((*NET, "--host-loopback", "allow", "--host-loopback-forward", "tcp:1"), "--host-loopback-forward"),
    ],
)
def test_a_refused_value_is_named_by_its_option(
    words: tuple[str, ...], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ()
    if not {"--openvmm", "--artifacts"} & set(words) and words:
        for name in ("k", "i", "SOURCE-MANIFEST.json", "SHA256SUMS"):
            (tmp_path / name).write_bytes(b"x")
        pieces = {"--kernel": "k", "--initrd": "i", "--manifest": "SOURCE-MANIFEST.json"}
        more = ("--openvmm", "o", *(part for option, name in pieces.items() for part in (option, str(tmp_path / name))))
    assert run_command([*RUN, *words, *more]) == 1
    told = capsys.readouterr().err
    assert told.startswith((f"error: {named}: ", f"error: {named} ", f"error: {named}, ")), told


def test_a_rule_of_a_policy_file_is_named_by_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"mode": "deny", "allow": [{"cidr": "10.0.0.1/8"}]}))
    assert run_command([*RUN, "--network-egress-policy-file", str(path)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {path}: allow rules: '10.0.0.1/8' isn't a network")


def test_an_image_is_named_by_its_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["image", "verify", "", "--format", "erofs"]) == 1
    assert capsys.readouterr().err.startswith("error: PATH: a path is needed")
    assert run_command(["image", "verify", "x", "--format", "erofs", "--identity", "1"]) == 1
    assert capsys.readouterr().err.startswith("error: --identity: ")


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (ExecResult("exit", 124), None),
        (ExecResult("signal", 137), None),
        (ExecResult("timeout", 124), "the program was ended: it ran longer than its 5 ms"),
        (ExecResult("output-limit", 125), "the program was ended: its output passed 1048576 bytes"),
        (ExecResult("cancelled", 137), "the program was ended: it was cancelled"),
        (ExecResult("failed", 125), "the guest could not run it (status 125)"),
        (ExecResult("cwd-failed", 125, refused=True), "the guest refused to run it: cwd-failed (status 125)"),
    ],
)
def test_a_program_that_was_ended_is_told_from_one_that_exited(
    result: ExecResult, said: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert why_ended(result, ExecRequest(argv=("/bin/true",), timeout_ms=5)) == said
    monkeypatch.setattr(Orchestrator, "exec", lambda *_, **__: result)
    run = ["exec", "--state-dir", "box", "--exec-timeout-ms", "5", "--", "/bin/true"]
    assert run_command(run) == result.status
    assert capsys.readouterr() == ("", f"error: {said}\n" if said else "")
