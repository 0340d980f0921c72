"""A made-up release whose OpenVMM is the bundled fake, and a pytest plugin by which a real backend's driver takes it.

The plugin is for tests of the harness alone (``-p stand_in``): it answers in the place of the probe that the hypervisor
runs guests, and in the place of the guest, which has no kernel of its own here, that it shows nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest

from harness import images, python
from harness.backends import openvmm
from harness.backends.probes import Verdict
from harness.sandbox import Sandbox

OPENVMM = """#!{interpreter} -I
import sys
sys.path[:0] = {places!r}
{first}
from fake_openvmm import main

if __name__ == "__main__":
    sys.exit(main())
"""

CONTRACTS: dict[str, object] = {
    "microvm_abi_version": 2,
    "control_session_protocol_version": 1,
    "control_contract_revision": "nvx-microvm-v2-control-v2",
}

CHECKOUT = {
    "bin/openvmm": "openvmm/target/release/openvmm",
    "guest/vmlinux": "build/vmlinux",
    "guest/initramfs.cpio.gz": "build/initramfs.cpio.gz",
    "guest/initramfs-adapter.cpio.gz": "build/initramfs-adapter.cpio.gz",
}


def release(root: Path, *, first: str = "") -> Path:
    """Write a release whose OpenVMM can be started.

    Args:
        root: Where.
        first: What it does before anything else, as a line of Python.
    """
    script = OPENVMM.format(interpreter=python.interpreter(), places=[python.home("fake_openvmm")], first=first)
    images.write_artifacts(str(root), openvmm=script.encode())
    if sys.platform == "win32":
        (root / "bin/openvmm").rename(root / "bin/openvmm.exe")
        sums(root)
    return root


def checkout(root: Path) -> Path:
    """Write the same in a checkout's layout, which has no digests."""
    made = release(root / "made")
    for name, path in CHECKOUT.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (made / name).rename(root / path)
    (made / "SOURCE-MANIFEST.json").rename(root / "SOURCE-MANIFEST.json")
    return root


def state(root: Path, **contracts: object) -> None:
    """Have a release state other contracts."""
    manifest = root / "SOURCE-MANIFEST.json"
    manifest.write_text(json.dumps({"openvmm": {**CONTRACTS, **contracts}}))


def sums(root: Path, names: tuple[str, ...] | None = None) -> None:
    """Write right digests of a release's files, or of some."""
    there = [path for path in root.rglob("*") if path.is_file() and path.name != "SHA256SUMS"]
    files = names or tuple(sorted(path.relative_to(root).as_posix() for path in there))
    lines = [f"{hashlib.sha256((root / name).read_bytes()).hexdigest()}  {name}\n" for name in files]
    (root / "SHA256SUMS").write_text("".join(lines), newline="\n")


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Answer for the hypervisor and for the guest."""
    if os.environ.get("STAND_IN"):
        openvmm.probe = lambda _name: Verdict(works=True, reason="it is made up")  # type: ignore[assignment]
        Sandbox.look = lambda _box, _program: lambda *_argv: None  # type: ignore[method-assign]
