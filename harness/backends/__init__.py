"""Backends: which VMM the scenarios run on. None is ever replaced by another."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

from harness.errors import Unavailable

if TYPE_CHECKING:
    from harness.backends.contract import Backend
    from harness.settings import Settings

DEVICES = {"kvm": "/dev/kvm", "mshv": "/dev/mshv"}


def missing(settings: Settings) -> tuple[str, ...]:
    """Return what the chosen backend lacks here, each with what would bring it; empty if it can run."""
    name = settings.backend
    if name == "fake":
        there = importlib.util.find_spec("fake_openvmm") is not None
        return () if there else ("the package fake_openvmm (install this project)",)
    found: list[str] = []
    device = DEVICES.get(name)
    if device is not None and not os.access(device, os.R_OK | os.W_OK):
        found.append(f"read and write access to {device}")
    if name == "whp" and os.path.sep != "\\":
        found.append("Windows with the Windows Hypervisor Platform")
    if name != "qemu" and settings.artifacts is None and settings.openvmm is None:
        found.append("OpenVMM and a guest (--artifacts DIR)")
    return (*found, f"the driver of {name} in this version of the harness")


def load(settings: Settings) -> Backend:
    """Return the chosen backend.

    Raises:
        Unavailable: It can't run here; the error names what is missing.
    """
    if lacking := missing(settings):
        raise Unavailable(f"--backend {settings.backend}", lacking)
    from harness.backends.fake import Fake  # noqa: PLC0415 - each backend brings its own imports

    return Fake()
