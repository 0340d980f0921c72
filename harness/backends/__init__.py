"""Backends: which VMM the scenarios run on. None is ever replaced by another.

A backend is a module of this package with two functions: ``missing(settings)`` names what it lacks on this machine, and
``make(settings)`` returns it. Both are called before any test.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Protocol, cast

from harness.errors import Unavailable

if TYPE_CHECKING:
    from harness.backends.contract import Backend
    from harness.settings import Settings

MODULES = {"fake": "fake", "kvm": "openvmm", "mshv": "openvmm", "whp": "openvmm", "qemu": "qemu"}
"""From a backend's name to its module here."""


class Driver(Protocol):
    """What a backend's module offers."""

    def missing(self, settings: Settings) -> tuple[str, ...]:
        """Return what it lacks here, each with what would bring it; empty if it can run."""
        ...

    def make(self, settings: Settings) -> Backend:
        """Return it; it lacks nothing."""
        ...


def missing(settings: Settings) -> tuple[str, ...]:
    """Return what the chosen backend lacks here, each with what would bring it; empty if it can run."""
    driver = _driver(settings.backend)
    return driver.missing(settings) if driver else (f"the driver of {settings.backend} in this version of the harness",)


def load(settings: Settings) -> Backend:
    """Return the chosen backend.

    Raises:
        Unavailable: It can't run here; the error names what is missing.
    """
    lacking = missing(settings)
    driver = _driver(settings.backend)
    if lacking or driver is None:
        raise Unavailable(f"--backend {settings.backend}", lacking)
    return driver.make(settings)


def _driver(name: str) -> Driver | None:
    module = f"{__name__}.{MODULES[name]}"
    if importlib.util.find_spec(module) is None:
        return None
    return cast("Driver", importlib.import_module(module))
