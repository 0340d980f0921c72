"""Misbehaviour that Windows has no way to show."""

from __future__ import annotations

import sys

assert sys.platform == "win32"

from fake_openvmm.machine import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_REASON = "this knob needs a fork, which Windows doesn't have"


def keep_log(hello: Callable[[int], object]) -> int:
    """Refuse.

    Raises:
        Failure: always.
    """
    del hello
    raise Failure(_REASON)


def listen_elsewhere(server: object, *, stay: bool) -> int:
    """Refuse.

    Raises:
        Failure: always.
    """
    del server, stay
    raise Failure(_REASON)


def end_first_thread(rest: Callable[[], None], when: Callable[[Callable[[], None]], None]) -> None:
    """Refuse.

    Raises:
        Failure: always.
    """
    del rest, when
    raise Failure(_REASON)
