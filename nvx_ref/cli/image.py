"""``nvx-ref image``: look at an image, verify it, bind it. None of them touches a sandbox.

``inspect`` reads headers; ``verify`` reads everything that the policy needs, and says how much that was; ``bind``
prints the binding that a configuration keeps, made by verification or, with ``--staged``, on a staging caller's word.
"""

from __future__ import annotations

import click
import msgspec

from nvx_ref.cli.naming import IMAGE, typed
from nvx_ref.cli.options import FORMATS
from nvx_ref.cli.output import Progress
from nvx_ref.images import DistroBinding, ImageFormat, inspect_image, seal_manifest, seal_of, verify_distro
from nvx_ref.images import import_binding as take_word

_IDENTITY = click.option("--identity", metavar="UUID", help="The identity that the image must have.")
_FORMAT = click.option("--format", "image_format", type=FORMATS, required=True, help="What the image must be.")


@click.group(short_help="Look at images, verify and bind them.")
def image() -> None:
    """Look at images, verify them, and make the bindings that launches check by metadata alone."""


@image.command(short_help="Print what its header says.")
@click.argument("path")
@_FORMAT
def inspect(path: str, image_format: str) -> None:
    """Print what the header of PATH says: identity, sector size, file system; reads no more than headers."""
    with typed(IMAGE):
        _print(inspect_image(path, ImageFormat(image_format)))


@image.command(short_help="Verify all that the policy needs.")
@click.argument("path")
@_FORMAT
@_IDENTITY
def verify(path: str, image_format: str, identity: str | None) -> None:
    """Verify PATH: its header, and with a manifest beside it the digest of every byte and the package list."""
    progress = Progress()
    with typed(IMAGE):
        verify_distro(path, format=ImageFormat(image_format), identity=identity, progress=progress)
    click.echo(f"accepted; {progress.hashed} bytes hashed")


@image.command(short_help="Print the binding that a launch checks.")
@click.argument("path")
@_FORMAT
@_IDENTITY
@click.option("--staged", is_flag=True, help="Take the caller's word that it was verified: nothing is read.")
def bind(path: str, image_format: str, identity: str | None, staged: bool) -> None:  # noqa: FBT001
    """Verify PATH and print its binding as JSON."""
    kind = ImageFormat(image_format)
    with typed(IMAGE):
        if staged:
            seal = seal_of(path)
            binding = take_word(path, format=kind, identity=identity, image=seal, manifest=seal_manifest(path))
        else:
            binding = verify_distro(path, format=kind, identity=identity, progress=Progress())
    _print(binding)


def _print(value: DistroBinding | msgspec.Struct) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
