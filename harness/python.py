"""The one way in which Python is started: the base interpreter, isolated, with a script that sets its own path.

No environment variable, no working directory, no user site and no virtual environment's start-up files take part, so
a process is what its script says. A virtual environment's ``python.exe`` on Windows is a wrapper that starts a child;
the base interpreter is the process itself, on every system.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.platform import as_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


__all__ = ["as_text", "command", "home", "interpreter", "write_launcher", "write_script"]


TRACE = ".launched"
"""What the name of the file ends in that a launcher leaves."""


def interpreter() -> str:
    """Return the path of the base interpreter."""
    base: str | None = getattr(sys, "_base_executable", None)
    return base or sys.executable


def command(script: str, *arguments: str) -> list[str]:
    """Return the command that runs a script that :func:`write_script` wrote."""
    return [interpreter(), "-I", "-S", script, *arguments]


def home(package: str) -> str:
    """Return the directory that has to be on the path for ``import package``, without importing it.

    Raises:
        HarnessError: There is no such package here.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise HarnessError(f"package {package} isn't installed beside {sys.executable}")
    inside = os.path.dirname(os.path.abspath(spec.origin))
    return os.path.dirname(inside) if spec.submodule_search_locations else inside


def write_script(path: str, *, packages: Iterable[str], body: str, first: Sequence[str] = ()) -> list[str]:
    """Write a script and return the command that runs it.

    One that is there already stays as it is if it says the same, and is replaced whole if it doesn't: an interpreter
    that was started a moment ago may be about to read it.

    Args:
        path: The file to write; private to this user.
        packages: Packages that the script imports beyond the standard library.
        body: The statements after the path is set.
        first: Directories that go before all others, for example another build of a package.
    """
    places = list(dict.fromkeys([*first, *(home(package) for package in packages)]))
    text = f"import sys\n\nsys.path[:0] = {places!r}\n{body.rstrip()}\n"
    if not _says(path, text):
        staged = f"{path}.{os.urandom(4).hex()}.new"
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        os.replace(staged, path)
    return command(path)


def _says(path: str, text: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read() == text
    except FileNotFoundError:
        return False


def write_launcher(path: str, *, side_file: str, token: str, traces: str) -> list[str]:
    """Write the launcher of a bundled fake for one test and return its command.

    The command has no shebang and no option of the fake: the side file and the token are in the script alone, so the
    fake's arguments are the orchestrator's, and a process is found by the script's path in them. It leaves a file
    first, so that one that dies on its way to its first word is known as well: device and inode of its output are in
    it, and its status where it fails to begin.

    Args:
        path: The script.
        side_file: The fake's side file.
        token: The token of the test.
        traces: What the names of those files begin with; its PID and :data:`TRACE` follow.
    """
    body = (
        "import os\n\n"
        f"TOKEN = {token!r}\n\n\n"
        "def trace(text):\n"
        "    try:\n"
        "        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND\n"
        f"        file = os.open({traces!r} + str(os.getpid()) + {TRACE!r}, flags, 0o600)\n"
        "        os.write(file, text.encode())\n"
        "        os.close(file)\n"
        "    except OSError:\n"
        "        pass\n\n\n"
        "try:\n"
        "    output = os.fstat(1)\n"
        '    trace(f"{output.st_dev} {output.st_ino}")\n'
        "except OSError:\n"
        '    trace("0 0")\n'
        "try:\n"
        "    from fake_openvmm import main\n"
        "except BaseException:\n"
        '    trace(" 1")\n'
        "    raise\n\n"
        'if __name__ == "__main__":\n'
        f"    sys.exit(main(side_file={side_file!r}))\n"
    )
    return write_script(path, packages=("fake_openvmm",), body=body)
