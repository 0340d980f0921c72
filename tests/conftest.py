"""What all tests share: the profile of the property tests, and signals. The markers of tests come from the plugin."""

from __future__ import annotations

import signal
import sys
import zlib

from hypothesis import HealthCheck, settings

# No example database: the tests also run from a tree that this user can't write to. And no example is judged by how
# long it took: the machine may be busy.
settings.register_profile(
    "nvx", database=None, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("nvx")

# A run in the background of a script ignores these, and so would everything that the tests start.
for number in (signal.SIGINT, *([] if sys.platform == "win32" else [signal.SIGQUIT])):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

LONGEST_VALUE = 1000


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a long value by its length and sum: the name goes into a variable of the environment, short on Windows."""
    if isinstance(val, str | bytes) and len(val) > LONGEST_VALUE:
        raw = val if isinstance(val, bytes) else val.encode("utf-8", "surrogatepass")
        return f"{len(val)} long, {zlib.crc32(raw):08x}"
    return None
