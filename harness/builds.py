"""Builds of the reference: the one that is installed, and copies of it with another version or other contracts.

A copy goes first on the path of the orchestrator under test, so that two builds meet over one store; or it is what a
virtual environment of its own has, as two releases on one machine are.
"""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from venv import EnvBuilder

from harness import python
from harness.errors import HarnessError, Unavailable
from harness.platform import KERNEL
from harness.sandbox import ADAPTER, LAYERED
from harness.sut.process import Started

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.world import World

PACKAGE = "nvx_ref"
PACKAGES = ("harness", PACKAGE, "msgspec", "click")
"""What an orchestrator under test imports beyond the standard library."""


@dataclass(frozen=True, slots=True)
class Build:
    """One build.

    Attributes:
        version: What it says that it is.
        first: Directories that go first on its path.
        interpreter: The Python that has it by itself; none: the base interpreter.
    """

    version: str = ""
    first: Sequence[str] = field(default_factory=tuple[str, ...])
    interpreter: str = ""

    def orchestrator(self, world: World, guest: str = LAYERED) -> Started:
        """Return what starts it as the orchestrator under test (:meth:`harness.world.World.orchestrator`).

        Args:
            world: The test's world.
            guest: Whose agent it speaks to.
        """
        name = "adapter" if guest == ADAPTER else "reference"
        body = f"from harness.sut.{name} import main\n\nsys.exit(main())\n"
        return Started(self._script(world, name, body), environment=world.environment())

    def shell(self, world: World) -> list[str]:
        """Return its command line."""
        return self._script(
            world, "nvx-ref", 'from nvx_ref.cli import main\n\nsys.argv[0] = "nvx-ref"\nsys.exit(main())\n'
        )

    def script(self, world: World, body: str) -> list[str]:
        """Return the command of a program that uses it as a library."""
        return self._script(world, "program", body)

    def _script(self, world: World, name: str, body: str) -> list[str]:
        # A build that isn't the one that runs would show nothing.
        proof = f'import {PACKAGE}\n\nassert getattr({PACKAGE}, "__version__", "") == {self.version!r}\n'
        path = os.path.join(world.root, "out", f"{name}{self.version and '-'}{self.version}.py")
        if self.interpreter:
            python.write_script(path, packages=(), body=proof + body)
            return [self.interpreter, "-I", path]
        return python.write_script(path, packages=PACKAGES, body=proof + body, first=self.first)


def copy(directory: str, version: str, constants: Mapping[str, object] | None = None) -> Build:
    """Copy the reference as another build; one that is there already stays.

    Args:
        directory: Where copies go.
        version: Its version.
        constants: Values of module constants that it has instead, by name.

    Raises:
        HarnessError: A constant isn't defined exactly once.
    """
    first = os.path.join(directory, f"build-{version}")
    if not os.path.isdir(first):
        made = os.path.join(first, PACKAGE)
        # With times and byte code, so that only what is changed is compiled again; that in the making is gone again by
        # the time it is copied.
        ignored = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(os.path.join(python.home(PACKAGE), PACKAGE), made, ignore=ignored)
        with open(os.path.join(made, "__init__.py"), "a", encoding="utf-8") as file:
            file.write(f'\n__version__ = "{version}"\n')
        for name, value in (constants or {}).items():
            _redefine(made, name, value)
    return Build(version, (first,))


def install(build: Build) -> Build:
    """Give a copy a virtual environment of its own, beside it; one that is there already stays.

    Args:
        build: The copy.

    Raises:
        Unavailable: A virtual environment's Python isn't the process itself here, but starts a child.
    """
    if KERNEL == "win32":
        raise Unavailable("a build in an environment of its own", ("a virtual environment's Python is a wrapper here",))
    (first,) = build.first
    place = f"{first}-installed"
    if not os.path.isdir(place):
        staged = f"{place}.{os.getpid()}"
        EnvBuilder(symlinks=True).create(staged)
        packages = sysconfig.get_path("purelib", "venv", {"base": staged, "platbase": staged})
        shutil.copytree(os.path.join(first, PACKAGE), os.path.join(packages, PACKAGE))
        # What is installed goes before what such a file names.
        with open(os.path.join(packages, "beside.pth"), "w", encoding="utf-8") as file:
            file.write("".join(f"{home}\n" for home in dict.fromkeys(map(python.home, PACKAGES))))
        os.rename(staged, place)
    return replace(build, first=(), interpreter=os.path.join(place, "bin", "python"))


def _redefine(package: str, name: str, value: object) -> None:
    pattern = re.compile(rf"^{re.escape(name)} = .*$", re.MULTILINE)
    changed = 0
    for place, _, files in os.walk(package):
        for path in (os.path.join(place, file) for file in files if file.endswith(".py")):
            with open(path, encoding="utf-8") as file:
                text, count = pattern.subn(f"{name} = {value!r}", file.read())
            if count:
                changed += count
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
    if changed != 1:
        raise HarnessError(f"{PACKAGE} defines {name} {changed} times, not once")
