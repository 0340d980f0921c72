"""A few commands of a Linux guest, and as much of its shell as the scenarios type."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile

assert sys.platform == "win32"

from fake_openvmm import archive

NOT_FOUND = 127
HOME = "/home/guest"
DIRECTORIES = ("/", "/tmp", "/bin", "/etc", "/usr", "/usr/bin", "/var", "/root", "/home")  # noqa: S108 - the guest's
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"

_WORD = re.compile(r"""\s*(\|\||&&|;|\d?>>?&?\d?|"(?:\\.|[^"])*"|'[^']*'|[^\s;|&>"']+)""")
_NAME = re.compile(r"\$\{?(\w+|\?)\}?")


class NoProgramError(Exception):
    """There is no such program in the guest."""


class Ended:
    """What a command did.

    Attributes:
        output: pieces as (1 or 2, bytes), in order.
        status: its exit status.
        sleeps: seconds after which it ends.
    """

    __slots__ = ("output", "sleeps", "status")

    def __init__(self) -> None:
        self.output: list[tuple[int, bytes]] = []
        self.status = 0
        self.sleeps = 0.0


class Shell:
    """The guest's user: its home, and the programs that it can start."""

    def __init__(self, account: str = "nobody", content: bytes = b"") -> None:
        """Unpack the home from its archive."""
        self._account = account
        self._files: dict[str, bytes] = _unpacked(content) if content else {}

    def pack(self) -> bytes:
        """The archive of the home."""
        place = tempfile.mkdtemp(prefix="nvx-home-")
        try:
            for name, data in self._files.items():
                path = os.path.join(place, *name.removeprefix(f"{HOME}/").split("/"))
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    file.write(data)
            return archive.pack(os.fsencode(place))
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def has_directory(self, path: str) -> bool:
        """Whether the guest has a directory."""
        return path in DIRECTORIES or path == HOME

    def run(self, words: list[str], own: dict[str, str], directory: str, *, inherits: bool) -> Ended:
        """Run a program to its end.

        Raises:
            NoProgramError: there is none of that name.
        """
        base = {"PATH": PATH, "TERM": "linux", "HOME": HOME, "USER": self._account, "LOGNAME": self._account}
        environment = {**(base if inherits else {}), "PWD": directory, **own}
        ended = Ended()
        name = os.path.basename(words[0])
        if not words[0].startswith(("/bin/", "/usr/bin/")):
            raise NoProgramError
        if name == "sh" and words[1:2] == ["-c"]:
            self._script(words[2], environment, ended)
        elif not self._program(name, words[1:], environment, ended, 1, 2):
            raise NoProgramError
        return ended

    def _script(self, text: str, environment: dict[str, str], ended: Ended) -> None:
        words: list[str] = []
        joint = ";"
        for token in [*_WORD.findall(text), ";"]:
            if token not in {";", "&&", "||"}:
                words += token.split("${IFS}") if token[0] not in "'\"" else [token]
                continue
            skipped = (joint == "&&" and ended.status != 0) or (joint == "||" and ended.status == 0)
            if words and not skipped and self._command(words, environment, ended):
                return
            words, joint = [], token

    def _command(self, words: list[str], environment: dict[str, str], ended: Ended) -> bool:
        """Run one command of a script; tell whether it was the last by its own will."""
        streams: dict[int, int | str] = {1: 1, 2: 2}
        arguments: list[str] = []
        append: set[int] = set()
        rest = iter(words)
        for word in rest:
            found = re.fullmatch(r"(\d?)(>>?)(?:&(\d))?", word)
            if found is None:
                arguments.append(_expanded(word, environment, ended.status))
                continue
            number = int(found[1] or 1)
            streams[number] = streams[int(found[3])] if found[3] else _expanded(next(rest), environment, ended.status)
            if found[2] == ">>":
                append.add(number)
        for number, target in streams.items():
            if isinstance(target, str) and target != "/dev/null" and number not in append:
                self._files[target] = b""
        if arguments[0] == "exit":
            ended.status = int(arguments[1]) if arguments[1:] else ended.status
            return True
        name = os.path.basename(arguments[0])
        if not self._program(name, arguments[1:], environment, ended, streams[1], streams[2]):
            self._write(ended, streams[2], f"sh: {arguments[0]}: not found\n".encode())
            ended.status = NOT_FOUND
        return False

    def _program(
        self, name: str, arguments: list[str], environment: dict[str, str], ended: Ended, out: int | str, err: int | str
    ) -> bool:
        ended.status = 0
        match name:
            case "true" | ":":
                pass
            case "false":
                ended.status = 1
            case "echo":
                self._write(ended, out, f"{' '.join(arguments)}\n".encode(errors="surrogateescape"))
            case "pwd":
                self._write(ended, out, f"{environment['PWD']}\n".encode())
            case "env":
                self._write(ended, out, "".join(f"{key}={value}\n" for key, value in environment.items()).encode())
            case "sleep":
                ended.sleeps += float(arguments[0])
            case "cat":
                for path in arguments:
                    if path in self._files:
                        self._write(ended, out, self._files[path])
                    else:
                        self._write(ended, err, f"cat: {path}: No such file or directory\n".encode())
                        ended.status = 1
            case _:
                return False
        return True

    def _write(self, ended: Ended, where: int | str, data: bytes) -> None:
        if isinstance(where, int):
            ended.output.append((where, data))
        elif where != "/dev/null":
            self._files[where] = self._files.get(where, b"") + data


def _expanded(word: str, environment: dict[str, str], status: int) -> str:
    if word.startswith("'"):
        return word[1:-1]
    if word.startswith('"'):
        word = re.sub(r'\\(["\\$])', r"\1", word[1:-1])
    return _NAME.sub(lambda found: str(status) if found[1] == "?" else environment.get(found[1], ""), word)


def _unpacked(content: bytes) -> dict[str, bytes]:
    place = tempfile.mkdtemp(prefix="nvx-home-")
    found: dict[str, bytes] = {}
    try:
        archive.unpack(os.fsencode(place), content)
        for directory, _, names in os.walk(place):
            for name in names:
                path = os.path.join(directory, name)
                with open(path, "rb") as file:
                    found[f"{HOME}/" + os.path.relpath(path, place).replace("\\", "/")] = file.read()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return found
