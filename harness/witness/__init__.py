"""Witnesses: what is true of processes, files and descriptors, whatever the orchestrator says."""

from __future__ import annotations

from harness.platform import host

__all__ = ["host"]
