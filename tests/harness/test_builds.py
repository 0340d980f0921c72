"""Builds of the reference, the witness of what comes to an endpoint, and exits that are held up."""

from __future__ import annotations

import os
import select
import socket
from pathlib import Path

import pytest

from harness import builds
from harness.builds import Build
from harness.errors import HarnessError, Unavailable
from harness.faults.heldexit import HeldExit
from harness.sandbox import RAMFS, Sandbox
from harness.world import World
from tests.harness.stubs import SLEEPER, running

SHOW = "import nvx_ref.images.artifacts as a\n\nprint(a.BOOT_CONTRACT, a.__file__)\n"


def test_a_copy_is_what_runs(world: World, tmp_path: Path) -> None:
    made = builds.copy(str(tmp_path), "7.1", {"MICROVM_ABI_VERSION": 9})
    contract, file = world.run(made.script(world, SHOW)).stdout.split()
    assert contract == "microvm-abi/9"
    assert file.startswith(str(tmp_path))
    assert builds.copy(str(tmp_path), "7.1") == made
    contract, file = world.run(Build().script(world, SHOW)).stdout.split()
    assert contract == "microvm-abi/2"
    assert not file.startswith(str(tmp_path))


def test_a_build_in_an_environment_of_its_own_is_what_runs_there(world: World, tmp_path: Path) -> None:
    made = builds.install(builds.copy(str(tmp_path), "7.1", {"MICROVM_ABI_VERSION": 9}))
    assert builds.install(builds.copy(str(tmp_path), "7.1")) == made
    shown = world.run(made.script(world, f"import sys\n\nprint(sys.prefix)\n{SHOW}")).stdout.split()
    prefix = os.path.dirname(os.path.dirname(made.interpreter))
    assert shown[:2] == [prefix, "microvm-abi/9"]
    assert shown[2].startswith(f"{prefix}/")


def test_a_copy_is_made_while_others_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "home" / builds.PACKAGE
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").touch()
    # Listed, and gone when it is to be copied, as a compiled file in the making is.
    (package / "__pycache__" / "__init__.cpython-311.pyc.140011").symlink_to("gone")
    monkeypatch.setattr(builds.python, "home", lambda _: str(tmp_path / "home"))
    (first,) = builds.copy(str(tmp_path), "7.1").first
    assert (Path(first) / builds.PACKAGE / "__init__.py").read_text() == '\n__version__ = "7.1"\n'


def test_a_build_that_is_not_the_one_that_runs_says_so(world: World) -> None:
    done = world.run(Build("9.9").script(world, SHOW))
    assert done.status != 0
    assert "AssertionError" in done.stderr


@pytest.mark.parametrize("name", ["NO_SUCH_CONSTANT", "__all__"])
def test_a_constant_that_is_not_defined_once_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(HarnessError, match="not once"):
        builds.copy(str(tmp_path), "1.1", {name: 1})


def test_a_connection_that_says_nothing_is_seen(world: World) -> None:
    """The control of every scenario that shows that a guest has heard nothing."""
    box = Sandbox(world, upper=RAMFS)
    program = world.orchestrator()
    box.provision(program)
    box.succeed(program, "start")
    (vm,) = world.vmm.vms()
    assert {"connection", "PING"} <= set(vm.contacts() or [])
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(box.path("control.sock"))
        assert world.until(lambda: (world.vmm.vms()[0].contacts() or [])[-3:] == ["host_gone", "reset", "connection"])
    box.succeed(program, "stop")
    world.processes.none("stop", world.soon())


def test_a_held_exit_does_not_come_until_it_is_let_go_of() -> None:
    with running(SLEEPER) as child:
        pidfd = os.pidfd_open(child.pid)
        try:
            with HeldExit(child.pid):
                child.kill()
                assert not select.select([pidfd], [], [], 0.3)[0]
        except Unavailable as error:
            pytest.skip(str(error))
        assert select.select([pidfd], [], [], 30)[0]
        os.close(pidfd)


def test_a_process_that_can_not_be_traced_is_said_to_be_unavailable() -> None:
    with pytest.raises(Unavailable, match="ptrace_scope"), HeldExit(2**22 + 1):
        pass
