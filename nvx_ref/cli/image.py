"""``nvx-ref image``: look at an image, verify it, bind it. None of them touches a sandbox.

``inspect`` reads headers; ``verify`` reads everything that the policy needs, and says how much that was; ``bind``
prints the binding that a configuration keeps, made by verification or, with ``--staged``, on a staging caller's word.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
import msgspec

from nvx_ref.cli.options import FORMATS
from nvx_ref.images import DistroBinding, ImageFormat, inspect_image, seal_manifest, seal_of, verify_distro
from nvx_ref.images import import_binding as take_word

if TYPE_CHECKING:
    from collections.abc import Callable

_IDENTITY = click.option("--identity", metavar="UUID", help="The identity that the image must have.")
_FORMAT = click.option("--format", "image_format", type=FORMATS, required=True, help="What the image must be.")
_PERCENT = 100


@click.group()
def image() -> None:
    """Look at images, verify them, and make the bindings that launches check by metadata alone."""


@image.command()
@click.argument("path")
@_FORMAT
def inspect(path: str, image_format: str) -> None:
    """Print what the header of PATH says: identity, sector size, file system; reads no more than headers."""
    _print(inspect_image(path, ImageFormat(image_format)))


@image.command()
@click.argument("path")
@_FORMAT
@_IDENTITY
def verify(path: str, image_format: str, identity: str | None) -> None:
    """Verify PATH: its header, and with a manifest beside it the digest of every byte and the package list."""
    progress = _Progress()
    verify_distro(path, format=ImageFormat(image_format), identity=identity, progress=progress)
    click.echo(f"accepted; {progress.hashed} bytes hashed")


@image.command()
@click.argument("path")
@_FORMAT
@_IDENTITY
@click.option("--staged", is_flag=True, help="Take the caller's word that it was verified: nothing is read.")
def bind(path: str, image_format: str, identity: str | None, staged: bool) -> None:  # noqa: FBT001
    """Verify PATH and print its binding as JSON."""
    kind = ImageFormat(image_format)
    if not staged:
        _print(verify_distro(path, format=kind, identity=identity, progress=_Progress()))
        return
    binding = take_word(path, format=kind, identity=identity, image=seal_of(path), manifest=seal_manifest(path))
    _print(binding)


class _Progress:
    """Counts what was hashed, and shows it on a terminal."""

    def __init__(self) -> None:
        self.hashed = 0
        self._shown = -1
        self._say: Callable[[str], object] | None = sys.stderr.write if sys.stderr.isatty() else None

    def __call__(self, done: int, total: int) -> None:
        self.hashed = done
        percent = done * _PERCENT // total
        if self._say is not None and percent != self._shown:
            self._shown = percent
            self._say(f"\rhashed {percent:3}%" + ("\n" if done == total else ""))
            sys.stderr.flush()


def _print(value: DistroBinding | msgspec.Struct) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
