"""The `nvx-harness` command: a demonstration to type along, and what this machine can and can't run."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from harness import images, outputs, python
from harness.crash.commands import replay, sweep
from harness.errors import HarnessError
from harness.machine import container, distro, doctor, leftovers
from harness.mutants.commands import mutants
from harness.platform import assignment, to_paste
from harness.progress import stages
from harness.report.commands import report

MAX_ENDPOINT = 107
"""Bytes that the path of a UNIX socket may have."""

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

OF_OUTPUT = frozenset({errno.EPIPE, errno.ENOSPC, errno.EBADF})
"""What goes wrong with what is printed, where no file is named."""

DEMO = """\
{directory} holds a made-up release, real images and a sandbox directory to be; nothing runs yet.
The VM monitor is the bundled fake. Paste these lines into a shell, one by one:

{lines}

`start` leaves the VM running when the command has ended, as the real thing does; `stop` ends it.
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nvx-ref", prog_name="nvx-harness")
def commands() -> None:
    """Tools around the scenarios; the scenarios themselves run by `pytest scenarios/`."""


commands.add_command(container)
commands.add_command(doctor)
commands.add_command(leftovers)
commands.add_command(mutants)
commands.add_command(replay)
commands.add_command(report)
commands.add_command(sweep)


@commands.command(short_help="Make a demonstration to type along.")
@click.argument("directory", metavar="DIR")
def demo(directory: str) -> None:
    """Make DIR with everything that a sandbox on the bundled fake needs, and print the commands of its life."""
    if not directory:
        raise HarnessError("DIR: the path is empty; name a new directory")
    root = os.path.abspath(directory)
    if os.path.lexists(root) and not os.path.isdir(root):
        raise HarnessError(f"DIR: {root} is no directory; name another one")
    state = os.path.join(root, "sandboxes", "demo")
    endpoint = os.fsencode(os.path.join(state, "control.sock"))
    if len(endpoint) > MAX_ENDPOINT or b"," in endpoint or b"=" in endpoint:
        raise HarnessError(f"DIR: {root}: a VM's socket can't be below it; use a shorter path without , and =")
    with outputs.told_of("DIR", root, "name a directory that can be written"), _whole(root):
        artifacts = images.write_artifacts(os.path.join(root, "artifacts"))
        files = images.unpack(os.path.join(root, "images"))
        vmm = python.write_script(
            os.path.join(root, "openvmm.py"),
            packages=("fake_openvmm",),
            body='from fake_openvmm import main\n\nif __name__ == "__main__":\n    sys.exit(main())\n',
        )
    variables = {
        "NVX_OPENVMM": python.as_text(vmm),
        "NVX_KERNEL": artifacts.kernel,
        "NVX_INITRD": artifacts.initramfs,
        "NVX_MANIFEST": artifacts.manifest,
    }
    sandbox = ["--state-dir", state]
    boot = ["--distro", files.erofs, "--format", "erofs", "--identity", images.EROFS_UUID, "--scratch", files.scratch]
    typed = [
        ["nvx-ref", "provision", *sandbox, *boot],
        ["nvx-ref", "start", *sandbox],
        ["nvx-ref", "status", *sandbox],
        ["nvx-ref", "exec", *sandbox, "--", "/bin/sh", "-c", "echo hello from the sandbox"],
        ["nvx-ref", "stop", *sandbox],
        ["nvx-ref", "deprovision", *sandbox],
    ]
    lines = [assignment(name, value) for name, value in variables.items()]
    lines += [to_paste([_beside(words[0]), *words[1:]]) for words in typed]
    click.echo(DEMO.format(directory=root, lines="\n".join(f"    {line}" for line in lines)), nl=False)


@contextmanager
def _whole(root: str) -> Generator[None, None, None]:
    """Make a directory for what the block writes, if it isn't there; nothing of that stays if the block is cut short.

    Raises:
        HarnessError: Something is in there.
    """
    there = os.path.isdir(root)
    if there and os.listdir(root):
        raise HarnessError(f"DIR: {root} isn't empty; name a new directory")
    os.makedirs(root, mode=0o700, exist_ok=True)
    try:
        yield
    except BaseException:
        for name in os.listdir(root):
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)
            with suppress(OSError):
                os.unlink(os.path.join(root, name))
        if not there:
            os.rmdir(root)
        raise


@commands.group(name="setup", short_help="Build what a backend needs.")
def set_up() -> None:
    """Build what a backend needs and the bundled fake doesn't."""


set_up.add_command(distro)


@set_up.command(short_help="Build a real Linux guest for --backend qemu.")
@click.option("--kernel", metavar="FILE.deb", help="a linux-image package of Debian's, instead of the one apt fetches")
@click.option("--again", is_flag=True, help="build it even if it is there")
@click.option("--no-install", is_flag=True, help="as root, too, only name the Debian packages that are missing")
def qemu(kernel: str | None, *, again: bool, no_install: bool) -> None:
    """Build the kernel, the agent, the initramfs and the images of `--backend qemu`, from source; once is enough.

    Debian packages that are missing are installed by root, and named to everybody else.
    """
    from harness.qemu import setup  # noqa: PLC0415 - for this command only

    with stages("setup qemu") as say:
        setup.set_up(say, package=kernel, again=again, install=not no_install)


def _beside(name: str) -> str:
    """Return the command beside this one if its directory isn't on the path, so that the printed line just works."""
    return name if shutil.which(name) else os.path.join(os.path.dirname(sys.executable), name)


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status: 0, 1 for a failure, 2 for a usage error.

    Raises:
        KeyboardInterrupt: It was interrupted.
    """
    try:
        result: object = commands.main(args=list(arguments), prog_name="nvx-harness", standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return 2
    except click.Abort:
        raise KeyboardInterrupt from None
    except OSError as error:
        where = (
            "" if error.filename else "the output: " if error.errno in {errno.EPIPE, errno.ENOSPC, errno.EBADF} else ""
        )
        click.echo(f"error: {where}{outputs.said_of(error)}", err=True)
        return 1
    except (click.ClickException, HarnessError) as error:
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        click.echo(f"error: {text}", err=True)
        return 1
    return result if isinstance(result, int) else 0
