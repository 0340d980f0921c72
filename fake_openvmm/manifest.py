"""What the release that the kernel belongs to says of itself: for the evidence only, the run doesn't depend on it."""

from __future__ import annotations

import os

from fake_openvmm import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.machine import Json

NAME = "SOURCE-MANIFEST.json"
LIMIT = 1 << 20


def of_kernel(kernel: str) -> dict[str, Json] | None:
    """Give the path of the kernel's manifest and its `openvmm` section, or a `fault` in place of the section.

    Args:
        kernel: the kernel's path, `/proc/self/fd/N` too. Its directory is looked into first, then the one above: a
            release keeps its kernel in `guest/` and the manifest at its root.

    Returns:
        None if there is no manifest.
    """
    beside = os.path.dirname(os.path.realpath(kernel))
    for directory in (beside, os.path.dirname(beside)):
        path = os.path.join(directory, NAME)
        if os.path.isfile(path):
            return {"path": path, **_section(path)}
    return None


def _section(path: str) -> dict[str, Json]:
    try:
        with open(path, "rb") as file:
            document = jsontext.decode(file.read(LIMIT).decode())
    except (OSError, ValueError) as error:
        return {"fault": str(error)}
    section = document.get("openvmm") if isinstance(document, dict) else None
    return {"openvmm": section} if isinstance(section, dict) else {"fault": "no openvmm section"}
