"""The commands on sandboxes: each parses, calls the orchestrator and prints (contract nvx-host 2.1 and 2.2)."""

from __future__ import annotations

import os
from typing import Unpack

import click
import msgspec

from nvx_ref import supervisor
from nvx_ref.cli import ENDINGS, INTERRUPTS
from nvx_ref.cli.image import image
from nvx_ref.cli.naming import SANDBOX, execution_words, typed
from nvx_ref.cli.options import (
    ExecOptions,
    SandboxOptions,
    bound,
    describes_sandbox,
    executes,
    execution,
    outcome_report,
    request,
    sandbox,
)
from nvx_ref.cli.output import Progress, why_ended, write_output
from nvx_ref.cli.types import Seconds
from nvx_ref.configuration import configure
from nvx_ref.deadline import Deadline
from nvx_ref.errors import Refused, SessionFailed
from nvx_ref.orchestrator import Orchestrator
from nvx_ref.outcome import check_destination, encode_exec_report, publish
from nvx_ref.platform.words import show_command


class _InOrder(click.Group):
    """Lists its commands in the order of a sandbox's life, and leaves Ctrl-C's text to the caller."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names as they were added."""
        del ctx
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; click would print an empty line of its own for Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.Abort from None


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="nvx-ref", prog_name="nvx-ref")
def commands() -> None:
    """Run sandboxes as microVMs on OpenVMM: the reference orchestrator.

    The life of a sandbox: provision, start, exec, stop, deprovision. `status` looks without touching anything.
    """


@commands.command(short_help="Check the images and create the sandbox.")
@sandbox
@describes_sandbox
def provision(state_dir: str, timeout: float, **options: Unpack[SandboxOptions]) -> None:
    """Check the images and create the sandbox's directory; nothing is started."""
    orchestrator, name = _sandbox(state_dir)
    deadline = Deadline.after(timeout)
    with typed(SANDBOX):
        configuration = configure(request(options), state=orchestrator.store.path(name), progress=Progress())
        orchestrator.provision(name, configuration, deadline=deadline)


@commands.command(short_help="Boot its VM and wait for its guest.")
@sandbox
def start(state_dir: str, timeout: float) -> None:
    """Boot the sandbox's VM and wait until its guest is ready."""
    orchestrator, name = _sandbox(state_dir)
    orchestrator.start(name, deadline=Deadline.after(timeout))


@commands.command(short_help="Run a program in its guest.")
@sandbox
@executes
@outcome_report
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def exec(  # noqa: A001 - the command's name
    state_dir: str,
    timeout: float,
    report: str | None,
    program: str,
    arguments: tuple[str, ...],
    **options: Unpack[ExecOptions],
) -> int:
    """Run PROGRAM (an absolute path) in the guest, with its output here and its exit status as this command's."""
    orchestrator, name = _sandbox(state_dir)
    wanted = execution((program, *arguments), options)
    if report is not None:
        check_destination(report)
    try:
        with typed(execution_words(options["environment_file"])):
            result = orchestrator.exec(name, wanted, deadline=Deadline.after(timeout), output=write_output)
    except SessionFailed as error:
        error.hint = error.hint or "ask status what became of the VM"
        raise
    if report is not None:
        publish(report, encode_exec_report(result.category, result.status))
    if ended := why_ended(result, wanted):
        click.echo(f"error: {ended}", err=True)
    return result.status


@commands.command(short_help="Ask its guest to stop and wait.")
@sandbox
@click.option("--force-within", type=Seconds(), metavar="S", help="End the VM by force, within S more seconds.")
def stop(state_dir: str, timeout: float, force_within: float | None) -> None:
    """Ask the guest to stop and wait for the VM's exit; without --force-within it is never ended by force."""
    orchestrator, name = _sandbox(state_dir)
    stopped = orchestrator.stop(name, deadline=Deadline.after(timeout), force_within=force_within)
    if isinstance(stopped, supervisor.Forced):
        click.echo("forced")


@commands.command(short_help="Remove it, stopped.")
@sandbox
def deprovision(state_dir: str, timeout: float) -> None:
    """Remove a stopped sandbox's directory; files that nobody declared are refused and kept."""
    orchestrator, name = _sandbox(state_dir)
    orchestrator.deprovision(name, deadline=Deadline.after(timeout))


@commands.command(short_help="Tell whether its VM runs; changes nothing.")
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


@commands.command(short_help="Boot once, run the entrypoint, remove.")
@bound
@describes_sandbox
@outcome_report
@click.option("--dry-run", "only_print", is_flag=True, help="Print the command that would run, and stop.")
@click.option("--explain", is_flag=True, help="With --dry-run: show where each byte of the command line goes.")
def run(timeout: float, report: str | None, only_print: bool, explain: bool, **options: Unpack[SandboxOptions]) -> int:  # noqa: FBT001 - click passes them by name
    """Boot once, run the entrypoint in a directory that goes with it, and exit with OpenVMM's status."""
    from nvx_ref.oneshot import dry_run, one_shot, run_once  # noqa: PLC0415 - no other command needs it

    if explain and not only_print:
        raise Refused("it needs --dry-run", subject="--explain", detail="explain")
    if report is not None:
        report = os.path.abspath(report)
        check_destination(report)
    with typed(SANDBOX):
        configuration = configure(request(options), progress=Progress())
        command, budget = dry_run(configuration, report=report)
    click.echo(f">> {show_command(command)}")
    if explain:
        for part in budget.parts:
            text = part.text.strip()
            click.echo(f"{part.size:5}  {part.name}: {text if text.isprintable() else repr(text)}")
        click.echo(f"{budget.used:5}  of {budget.limit} bytes")
    if only_print:
        return 0
    # Nobody else knows of its VM, which so ends with it however it is told to.
    INTERRUPTS.take(*ENDINGS)
    return run_once(one_shot(configuration), report=report, output=write_output, deadline=Deadline.after(timeout))


commands.add_command(image)


def _sandbox(state_dir: str) -> tuple[Orchestrator, str]:
    """Split ``--state-dir D`` into the store's root and the sandbox's name (design: names that stay fixed)."""
    if not state_dir or "\0" in state_dir:
        raise Refused("the path is empty or holds a NUL", subject="--state-dir")
    if os.pardir in state_dir.replace("\\", "/").split("/"):
        raise Refused("the path holds '..'", subject="--state-dir", hint="name the directory itself")
    path = os.path.abspath(state_dir)
    return Orchestrator(os.path.dirname(path)), os.path.basename(path)
