"""Make a copy of Wine's loader whose heap can't be where Windows' shared data has to be: ``loader.py LOADER PLACE``.

The loader is at 0x7d000000, and the kernel puts a program's heap somewhere in the gigabyte after its last part: now and
then at 0x7ffe0000, which no process of Wine's can do without. Where the choice can't be taken from the kernel (see the
keeper), one more part of the program is put after that place, so that the heap is after it, too. The copy has beside it
what Wine looks for there, and nothing of the system is changed.
"""

from __future__ import annotations

import os
import struct
import sys

FORM = b"\x7fELF\x02\x01"
LOAD, NOTE = 1, 4
READ_WRITE = 6
PAGE = 0x1000
BEHIND = 0x8000_0000
"""Where the new part is: after the shared data, as early as possible."""

_HEAD = struct.Struct("<IIQQQQQQ")


def moved(program: bytes) -> bytes:
    """Return a program with a page of nothing at :data:`BEHIND`, in the place of a note that nobody reads.

    Raises:
        ValueError: It isn't one of 64 bits, has a part there already, or no note after its parts.
    """
    if not program.startswith(FORM):
        raise ValueError("no program of 64 bits")
    (first,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    heads = [_HEAD.unpack_from(program, first + size * number) for number in range(count)]
    loads = [number for number, head in enumerate(heads) if head[0] == LOAD]
    notes = [number for number, head in enumerate(heads) if head[0] == NOTE and loads and number > loads[-1]]
    if not notes or any(heads[number][3] + heads[number][6] > BEHIND for number in loads):
        raise ValueError("a program of another form than Debian's Wine has")
    changed = bytearray(program)
    _HEAD.pack_into(changed, first + size * notes[-1], LOAD, READ_WRITE, 0, BEHIND, BEHIND, 0, PAGE, PAGE)
    return bytes(changed)


def make(loader: str, place: str) -> str:
    """Write the copy, with links to everything that the loader finds by its own path.

    Args:
        loader: The system's loader, for example ``/usr/lib/wine/wine64``.
        place: The directory to make, which stands for ``/usr``.

    Returns:
        The path of the copy.
    """
    beside = os.path.dirname(os.path.realpath(loader))
    library = os.path.dirname(beside)
    own = os.path.join(place, "lib", os.path.basename(beside))
    os.makedirs(own, exist_ok=True)
    links = {os.path.join(place, "share"): os.path.join(os.path.dirname(library), "share")}
    links |= {os.path.join(place, "lib", name): os.path.join(library, name) for name in os.listdir(library)}
    links |= {os.path.join(own, name): os.path.join(beside, name) for name in os.listdir(beside)}
    copy = os.path.join(own, os.path.basename(loader))
    for path, target in links.items():
        if not os.path.lexists(path) and path != copy:
            os.symlink(target, path)
    with open(loader, "rb") as file:
        program = moved(file.read())
    with open(f"{copy}.new", "wb") as file:
        file.write(program)
    os.chmod(f"{copy}.new", 0o700)
    os.replace(f"{copy}.new", copy)
    return copy


if __name__ == "__main__":
    print(make(*sys.argv[1:]))
