"""JSON without the json package, whose import costs two thirds of an interpreter start.

The scanner and the string encoder are the ones that the json package itself uses.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn, TypeGuard

    from fake_openvmm.machine import Json

    Scanner = Callable[[str, int], tuple[Json, int]]


class _Settings:
    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: dict[str, str] = {}  # noqa: RUF012 - the scanner's own memory of keys


def decode(text: str) -> Json:
    """Read one JSON document.

    Raises:
        ValueError: it is none.
    """
    stripped = text.strip(" \t\n\r")
    try:
        value, end = _scanner()(stripped, 0)
    except (StopIteration, SystemError):  # the scanner finds its error class in the package only
        import json  # noqa: PLC0415

        return _refused(json.loads, text)
    if end != len(stripped):
        raise ValueError(f"extra data at character {end}")
    return value


def encode(value: object) -> str:
    """Write a JSON document in one line; lone surrogates are escaped, so any file name passes.

    Raises:
        TypeError: something in it has no JSON form.
    """
    if isinstance(value, str):
        return _string(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if _is_list(value):
        return "[" + ", ".join([encode(item) for item in value]) + "]"
    if _is_table(value):
        return "{" + ", ".join([f"{_string(key)}: {encode(item)}" for key, item in value.items()]) + "}"
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _refused(parse: Callable[[str], object], text: str) -> NoReturn:
    parse(text)
    raise ValueError("expected a JSON value")


def _is_list(value: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    return isinstance(value, (list, tuple))


def _is_table(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def _scanner() -> Scanner:
    try:
        import _json  # noqa: PLC0415
    except ImportError:  # an interpreter without the accelerator pays for the package
        import json  # noqa: PLC0415

        plain: Scanner = json.JSONDecoder().raw_decode
        return plain
    make: Callable[[object], Scanner] = vars(_json)["make_scanner"]
    return make(_Settings)


def _string(text: str) -> str:
    try:
        from _json import encode_basestring_ascii  # noqa: PLC0415
    except ImportError:
        from json.encoder import py_encode_basestring_ascii as encode_basestring_ascii  # noqa: PLC0415
    return encode_basestring_ascii(text)
