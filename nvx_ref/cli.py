"""The `nvx-ref` command: flags in, one line out, one exit status.

It parses, calls :class:`nvx_ref.orchestrator.Orchestrator` and prints. Usage errors exit with 2; every other failure is
one line that starts ``error: `` and exits with 1; Ctrl-C prints ``Interrupted`` and exits with 130. ``exec`` exits with
the workload's own status. (contract nvx-host 2.2)
"""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from nvx_ref import supervisor
from nvx_ref.configuration import SandboxRequest, configure, dry_run, split_command
from nvx_ref.deadline import MAX_SECONDS, Deadline
from nvx_ref.errors import NvxError, Refused
from nvx_ref.nvxc import ExecRequest
from nvx_ref.orchestrator import Orchestrator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

F = TypeVar("F", bound="Callable[..., object]")

INTERRUPTED = 130
MAX_EXEC_TIMEOUT_MS = 2**32 - 1


class Seconds(click.ParamType[float]):
    """A bound in seconds: over 0, finite, at most 30 days."""

    name = "S"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse the text."""
        try:
            seconds = float(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        if not 0 < seconds <= MAX_SECONDS:
            self.fail(f"{value!r}: over 0 and at most {MAX_SECONDS:.0f} seconds", param, ctx)
        return seconds


class Pair(click.ParamType[tuple[int, int]]):
    """``UID:GID``, both decimal, both over zero: a workload is never root."""

    name = "UID:GID"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Parse the text."""
        user, colon, group = str(value).partition(":")
        if not (colon and user.isascii() and group.isascii() and user.isdecimal() and group.isdecimal()):
            self.fail(f"{value!r} is not two decimal numbers joined by a colon", param, ctx)
        pair = (int(user), int(group))
        if not all(0 < number < 2**32 for number in pair):
            self.fail(f"{value!r}: each number must be 1 to 4294967295; root is not allowed", param, ctx)
        return pair


def sandbox(function: F) -> F:
    """Add what every operation on one sandbox takes: its directory and a bound in seconds."""
    bound = click.option(
        "--timeout",
        type=Seconds(),
        default=60.0,
        show_default=True,
        metavar="S",
        help="Bound of the operation, seconds.",
    )
    place = click.option("--state-dir", required=True, metavar="D", help="The sandbox's own directory.")
    return place(bound(function))


def describes_sandbox(function: F) -> F:
    """Add the options that say what to boot, shared by `provision` and `run`."""
    options: list[Callable[[F], F]] = [
        click.option("--distro", required=True, metavar="PATH", help="The read-only distro image."),
        click.option(
            "--format", "image_format", type=click.Choice(["erofs", "gpt"]), required=True, help="The image's format."
        ),
        click.option("--identity", metavar="UUID", help="The identity that the guest must find in the image."),
        click.option("--scratch", metavar="PATH", help="A whole-device ext4 image for the writable upper."),
        click.option("--ram-upper", is_flag=True, help="Keep the writable upper in the guest's memory."),
        click.option("--artifacts", metavar="DIR", envvar="NVX_ARTIFACTS_DIR", help="A release or checkout layout."),
        click.option("--openvmm", metavar="CMD", envvar="NVX_OPENVMM", help="The VM monitor's whole command."),
        click.option("--kernel", metavar="K", envvar="NVX_KERNEL", help="The guest's kernel (uncompressed ELF)."),
        click.option("--initrd", metavar="I", envvar="NVX_INITRD", help="The guest's initramfs."),
        click.option("--manifest", metavar="M", envvar="NVX_MANIFEST", help="SOURCE-MANIFEST.json of the artifacts."),
        click.option("--hostname", default="nvx-sandbox", show_default=True, help="The guest's host name."),
        click.option("--entrypoint", default="/bin/sh", show_default=True, metavar="PATH", help="First program."),
        click.option("--arg", "arguments", multiple=True, help="An argument of the entrypoint (repeatable)."),
        click.option(
            "--workload-user", type=Pair(), default="65534:65534", show_default=True, help="Who workloads run as."
        ),
        click.option("--memory-mib", type=click.IntRange(min=1), default=256, show_default=True, help="Guest memory."),
        click.option("--memory-max", type=click.IntRange(min=1), metavar="BYTES", help="The workload's memory limit."),
        click.option("--pids-max", type=click.IntRange(min=1), metavar="N", help="The workload's process limit."),
        click.option(
            "--hypervisor", type=click.Choice(["auto", "kvm", "mshv", "whp"]), default="auto", show_default=True
        ),
        click.option("--cmdline", default="", metavar="TEXT", help="Text put before the kernel command line."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nvx-ref", prog_name="nvx-ref")
def commands() -> None:
    """Run sandboxes as microVMs on OpenVMM: the reference orchestrator.

    The life of a sandbox: provision, start, exec, stop, deprovision. `status` looks without touching anything.
    """


@commands.command()
@sandbox
@describes_sandbox
def provision(state_dir: str, timeout: float, **options: Any) -> None:  # noqa: ANN401 - click passes them by name
    """Check the images and create the sandbox's directory; nothing is started."""
    orchestrator, name = _sandbox(state_dir)
    deadline = Deadline.after(timeout)
    orchestrator.provision(name, configure(_request(options)), deadline=deadline)


@commands.command()
@sandbox
def start(state_dir: str, timeout: float) -> None:
    """Boot the sandbox's VM and wait until its guest is ready."""
    orchestrator, name = _sandbox(state_dir)
    orchestrator.start(name, deadline=Deadline.after(timeout))


@commands.command(context_settings={"ignore_unknown_options": False})
@sandbox
@click.option("--cwd", metavar="DIR", help="The program's working directory, absolute.")
@click.option("--environment", multiple=True, metavar="K=V", help="One variable of the program (repeatable).")
@click.option(
    "--inherit-default-environment", is_flag=True, help="Lay the variables on top of the guest's default ones."
)
@click.option(
    "--exec-timeout-ms",
    type=click.IntRange(min=0, max=MAX_EXEC_TIMEOUT_MS),
    default=0,
    show_default=True,
    help="End the program after this many milliseconds; 0 means never.",
)
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def exec(  # noqa: A001 - the command's name
    state_dir: str,
    timeout: float,
    cwd: str | None,
    environment: tuple[str, ...],
    inherit_default_environment: bool,  # noqa: FBT001 - click passes it by name
    exec_timeout_ms: int,
    program: str,
    arguments: tuple[str, ...],
) -> int:
    """Run PROGRAM (an absolute path) in the guest, with its output here and its exit status as this command's."""
    orchestrator, name = _sandbox(state_dir)
    request = ExecRequest(
        argv=(program, *arguments),
        cwd=cwd,
        environment=environment if environment or inherit_default_environment else None,
        inherit_environment=inherit_default_environment,
        timeout_ms=exec_timeout_ms,
    )
    result = orchestrator.exec(name, request, deadline=Deadline.after(timeout), output=_write_output)
    return result.status


@commands.command()
@sandbox
@click.option("--force-within", type=Seconds(), metavar="S", help="End the VM by force, within S more seconds.")
def stop(state_dir: str, timeout: float, force_within: float | None) -> None:
    """Ask the guest to stop and wait for the VM's exit; without --force-within it is never ended by force."""
    orchestrator, name = _sandbox(state_dir)
    stopped = orchestrator.stop(name, deadline=Deadline.after(timeout), force_within=force_within)
    if isinstance(stopped, supervisor.Forced):
        click.echo("forced")


@commands.command()
@sandbox
def deprovision(state_dir: str, timeout: float) -> None:
    """Remove a stopped sandbox's directory; files that nobody declared are refused and kept."""
    orchestrator, name = _sandbox(state_dir)
    orchestrator.deprovision(name, deadline=Deadline.after(timeout))


@commands.command()
@sandbox
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(state_dir: str, timeout: float, as_json: bool) -> None:  # noqa: FBT001 - click passes it by name
    """Print what is known of the sandbox's VM; takes no lock and changes nothing."""
    del timeout
    orchestrator, name = _sandbox(state_dir)
    found = orchestrator.status(name)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
    else:
        click.echo(f"{found.verdict}: {found.reason}" if found.reason else found.verdict)


@commands.command()
@describes_sandbox
@click.option("--dry-run", "only_print", is_flag=True, help="Print the command that would run, and stop.")
@click.option("--explain", is_flag=True, help="With --dry-run: show where each byte of the command line goes.")
def run(only_print: bool, explain: bool, **options: Any) -> None:  # noqa: ANN401, FBT001 - click passes them by name
    """Provision, boot, run the entrypoint and remove, in one go (only --dry-run for now)."""
    if not only_print:
        raise Refused(
            "a one-shot run is not available yet",
            subject="run",
            hint="pass --dry-run, or use provision, start, exec, stop and deprovision",
        )
    command, budget = dry_run(configure(_request(options)))
    click.echo(f">> {shlex.join(command)}")
    if explain:
        for part in budget.parts:
            click.echo(f"{part.size:5}  {part.name}: {part.text.strip() or repr(part.text)}")
        click.echo(f"{budget.used:5}  of {budget.limit} bytes")


def _sandbox(state_dir: str) -> tuple[Orchestrator, str]:
    """Split ``--state-dir D`` into the store's root and the sandbox's name (design: names that stay fixed)."""
    if not state_dir or "\0" in state_dir:
        raise Refused("the path is empty or holds a NUL", subject="--state-dir")
    if os.pardir in state_dir.replace("\\", "/").split("/"):
        raise Refused("the path holds '..'", subject="--state-dir", hint="name the directory itself")
    path = os.path.abspath(state_dir)
    return Orchestrator(os.path.dirname(path)), os.path.basename(path)


def _request(options: dict[str, Any]) -> SandboxRequest:
    given = {"openvmm", "workload_user", "image_format"}
    uid, gid = options["workload_user"]
    openvmm = options["openvmm"]
    return SandboxRequest(
        format=options["image_format"],
        openvmm=split_command(openvmm) if openvmm is not None else None,
        workload_uid=uid,
        workload_gid=gid,
        **{name: value for name, value in options.items() if name not in given},
    )


def _write_output(stream: str, data: bytes) -> None:
    target = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
    target.write(data)
    target.flush()


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status; a user never sees a traceback.

    Args:
        arguments: The words after the program's name.

    Returns:
        0, the workload's status, 1 for a refusal or failure, 2 for a usage error, 130 after Ctrl-C.
    """
    try:
        result = commands.main(args=list(arguments), prog_name="nvx-ref", standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted", err=True)
        return INTERRUPTED
    except NvxError as error:
        click.echo(f"error: {error}", err=True)
        return 1
    except click.ClickException as error:
        click.echo(f"error: {error.format_message()}", err=True)
        return 1
    except OSError as error:
        click.echo(f"error: {_os_reason(error)}", err=True)
        return 1
    return result if isinstance(result, int) else 0


def _os_reason(error: OSError) -> str:
    reason = error.strerror or type(error).__name__
    return f"{error.filename}: {reason}" if error.filename else reason


def main() -> None:
    """The console script."""
    sys.exit(run_command(sys.argv[1:]))
