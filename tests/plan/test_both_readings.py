"""What the plan renders, the bundled fake accepts: two independent readings of one contract.

Without a capability on its input the fake ends right after its checks of options, network and host directories, so
that message says that all of them passed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from harness.images import DISK_GUID
from nvx_ref.images import Artifacts, ImageFormat, Layout, verify_distro
from nvx_ref.plan import (
    Access,
    Blocks,
    ColdPlan,
    ExportPlan,
    Forward,
    Guest,
    GuestKind,
    Machine,
    MappingPolicy,
    NetworkMode,
    NetworkPolicy,
    Protocol,
    Rule,
    Share,
    Upper,
    plan_mappings,
    plan_network,
    plan_shares,
    prepare,
)
from tests.plan.conftest import Inputs

PASSED = "control authentication input"
POLICIES = {
    "none": None,
    "proxy only": NetworkPolicy(mode=NetworkMode.PROXY_ONLY, proxy=3128),
    "rules": NetworkPolicy(
        mode=NetworkMode.DENY,
        address="10.9.8.7/20",
        allow=(Rule("fd00::/8", Protocol.UDP, "1-2"), Rule("10.0.0.0/8", exceptions=("10.1.0.0/16",))),
        deny=(Rule("1.2.3.4", Protocol.ICMP), Rule("2001:db8::/32")),
        forwards=(Forward(Protocol.TCP, 80, 8080),),
    ),
}
Shares = Callable[[Path], ExportPlan | None]
EXPORTS: dict[str, Shares] = {
    "none": lambda _root: None,
    "one": lambda root: plan_shares(
        [
            Share(
                target="/data",
                host=f"{root}/one",
                access=Access.READ_WRITE,
                denied=(f"{root}/one/a",),
                allowed=(f"{root}/one/a/b",),
                writable=(f"{root}/one/a/b",),
            )
        ]
    ),
    "two": lambda root: plan_shares(
        [Share(target="/data", host=f"{root}/one"), Share(target="/f", host=f"{root}/two/file")]
    ),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "one/a/b/c").mkdir(parents=True)
    (tmp_path / "two").mkdir()
    for name in ("two/file", "two/other", "one/file"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def fake(inputs: Inputs) -> Artifacts:
    command = (sys.executable, "-m", "fake_openvmm")
    return msgspec.structs.replace(inputs.artifacts, layout=Layout.EXPLICIT, openvmm=command)


def run_fake(fake: Artifacts, plan: ColdPlan, inputs: Inputs) -> str:
    scratch = inputs.scratch if plan.blocks and plan.blocks.upper is Upper.EXT4 else None
    distro = None
    if plan.blocks:
        name = "distro.erofs" if plan.blocks.format is ImageFormat.EROFS else "distro.gpt.img"
        path = str(inputs.directory / "images" / name)
        distro = verify_distro(path, format=plan.blocks.format, identity=plan.blocks.identity)
    inputs.directory.chmod(0o700)
    with prepare(plan, fake, distro=distro, scratch=scratch) as prepared:
        command = prepared.command(
            endpoint=str(inputs.directory / "control.sock"), report=str(inputs.directory / "outcome.json")
        )
        done = subprocess.run(
            command.argv,
            pass_fds=command.allowed,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    return done.stderr


@pytest.mark.spec("622.acc.13")
@pytest.mark.parametrize("network", POLICIES)
@pytest.mark.parametrize("exports", EXPORTS)
def test_shares_and_networks_are_taken(
    fake: Artifacts, inputs: Inputs, plan: ColdPlan, root: Path, exports: str, network: str
) -> None:
    whole = msgspec.structs.replace(plan, exports=EXPORTS[exports](root), network=plan_network(POLICIES[network]))
    assert PASSED in run_fake(fake, whole, inputs)


@pytest.mark.parametrize("kind", [GuestKind.DIRECT, GuestKind.ADAPTER])
def test_mappings_are_taken(fake: Artifacts, inputs: Inputs, root: Path, kind: GuestKind) -> None:
    exports = plan_mappings(
        MappingPolicy(
            readonly_paths=(f"{root}/one", f"{root}/two/file"),
            readwrite_paths=(f"{root}/one/a", f"{root}/two/other"),
            denied_paths=(f"{root}/one/a/b",),
        )
    )
    blocks = Blocks(format=ImageFormat.GPT, identity=DISK_GUID, upper=Upper.RAMFS)
    plan = ColdPlan(
        version=1, guest=Guest(kind=kind), blocks=None if kind is GuestKind.DIRECT else blocks, exports=exports
    )
    assert PASSED in run_fake(fake, plan, inputs)


@pytest.mark.spec("622.scope1.h")
def test_an_adapters_machine_is_taken(fake: Artifacts, inputs: Inputs, ram_plan: ColdPlan) -> None:
    machine = Machine(processors=8, cpu_profile="host", auth_timeout_ms=60_000, memory_mib=64)
    assert PASSED in run_fake(fake, msgspec.structs.replace(ram_plan, machine=machine), inputs)


def test_a_rule_of_the_vmm_that_is_broken_shows(fake: Artifacts, inputs: Inputs, plan: ColdPlan) -> None:
    console = msgspec.structs.replace(plan, machine=Machine(console="listen=tcp:192.0.2.1:9"))
    assert PASSED not in run_fake(fake, console, inputs)
