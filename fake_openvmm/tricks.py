"""Misbehaviour that needs other processes and threads, at the harness's request only."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from fake_openvmm.windows.tricks import end_first_thread, keep_log, listen_elsewhere
else:
    from fake_openvmm.linux.tricks import end_first_thread, keep_log, listen_elsewhere

__all__ = ["end_first_thread", "keep_log", "listen_elsewhere"]
