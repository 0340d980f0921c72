"""The builds that meet over one store: the installed reference, and copies of it."""

from __future__ import annotations

import pytest

from harness import builds
from harness.builds import Build
from harness.platform import KERNEL
from harness.world import World

BOOT = {"MICROVM_ABI_VERSION": 3}
CONTROL = {"CONTROL_SESSION_PROTOCOL_VERSION": 2}


def other(world: World, version: str = "2.0", constants: dict[str, object] | None = None) -> Build:
    """Return another build of the reference; skips where the orchestrator under test isn't the reference.

    In a full run it is one of a virtual environment of its own, where the system has such.
    """
    if not world.bundled:
        pytest.skip("the orchestrator under test has one build here")
    made = builds.copy(world.shared, version, constants)
    return builds.install(made) if world.is_full and KERNEL != "win32" else made
