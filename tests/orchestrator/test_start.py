"""What a start asks its caller, and whom it speaks to; each refusal comes before anything is written."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from harness import images
from harness.sut.adapter import AdapterGuest
from nvx_ref.configuration import SandboxConfiguration, SandboxRequest, configure
from nvx_ref.control import NvxcGuest
from nvx_ref.deadline import Deadline
from nvx_ref.errors import LaunchFailed, NotFound, Refused, VmmExited
from nvx_ref.images.artifacts import CONTROL_CONTRACT_REVISION
from nvx_ref.oneshot import one_shot, run_once
from nvx_ref.orchestrator import Orchestrator
from nvx_ref.plan import GuestKind, MappingPolicy, Share
from nvx_ref.steps import Step

PROVISIONED = ["config.json", "lifecycle.lock"]


def soon() -> Deadline:
    return Deadline.after(60)


@pytest.fixture
def request_(tmp_path: Path) -> SandboxRequest:
    artifacts = images.write_artifacts(str(tmp_path / "artifacts"))
    return SandboxRequest(
        distro=images.unpack(str(tmp_path / "images")).erofs,
        format="erofs",
        ram_upper=True,
        openvmm=(sys.executable, "-c", "pass"),
        kernel=artifacts.kernel,
        initrd=artifacts.initramfs,
        manifest=artifacts.manifest,
    )


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path / "s")


def names(root: str) -> list[str]:
    return sorted(os.listdir(os.path.join(root, "box")))


def test_the_caller_s_policy_is_asked_before_anything_of_a_launch_is_written(
    request_: SandboxRequest, root: str
) -> None:
    asked: list[SandboxConfiguration] = []
    steps: list[Step] = []

    def authorise(configuration: SandboxConfiguration) -> None:
        asked.append(configuration)
        assert names(root) == PROVISIONED
        raise Refused("not today", subject="policy", detail="unauthorised")

    configuration = configure(request_)
    orchestrator = Orchestrator(root, observer=steps.append, authorise=authorise)
    orchestrator.provision("box", configuration, deadline=soon())
    steps.clear()
    with pytest.raises(Refused, match="not today"):
        orchestrator.start("box", deadline=soon())
    assert asked == [configuration]
    assert steps == [Step.START_LOCKED, Step.START_RECOVERED, Step.START_INPUTS_CHECKED]
    assert names(root) == PROVISIONED


def test_a_policy_that_says_yes_lets_the_launch_go_on(request_: SandboxRequest, root: str) -> None:
    steps: list[Step] = []
    orchestrator = Orchestrator(root, observer=steps.append, authorise=lambda _: None)
    orchestrator.provision("box", configure(request_), deadline=soon())
    with pytest.raises(LaunchFailed):
        orchestrator.start("box", deadline=soon())
    assert steps.index(Step.START_POLICY_AUTHORISED) < steps.index(Step.START_MARKER_WRITTEN)


def test_a_release_of_other_contracts_is_not_started_and_still_looked_at(request_: SandboxRequest, root: str) -> None:
    orchestrator = Orchestrator(root)
    orchestrator.provision("box", configure(request_), deadline=soon())
    manifest = Path(request_.manifest or "")
    said = manifest.read_text()
    manifest.write_text(said.replace(CONTROL_CONTRACT_REVISION, "nvx-microvm-v3-control-v1"))
    assert manifest.read_text() != said
    with pytest.raises(Refused) as caught:
        orchestrator.start("box", deadline=soon())
    assert (caught.value.subject, caught.value.detail) == (request_.manifest, "contract")
    assert names(root) == PROVISIONED
    assert orchestrator.status("box").verdict == "stopped"
    orchestrator.deprovision("box", deadline=soon())


@pytest.mark.parametrize(("code", "status"), [("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_a_run_ends_with_its_vmm_s_status_or_128_and_the_signal(
    request_: SandboxRequest, code: str, status: int
) -> None:
    request = msgspec.structs.replace(request_, openvmm=(sys.executable, "-c", f"import os; {code}"))
    configuration = one_shot(configure(request))
    assert run_once(configuration, report=None, output=lambda _stream, _data: None, deadline=soon()) == status


@pytest.mark.parametrize("what", ["distro", "scratch"])
def test_an_image_that_was_replaced_since_it_was_verified_is_not_provisioned(
    request_: SandboxRequest, root: str, tmp_path: Path, what: str
) -> None:
    scratch = images.copy_scratch(str(tmp_path / "scratch.ext4"))
    distro = shutil.copy(request_.distro or "", str(tmp_path / "distro.erofs"))
    request = msgspec.structs.replace(request_, distro=distro, ram_upper=False, scratch=scratch)
    configuration = configure(request)
    path = distro if what == "distro" else scratch
    os.rename(shutil.copy(path, tmp_path / "other"), path)
    orchestrator = Orchestrator(root)
    with pytest.raises(Refused) as caught:
        orchestrator.provision("box", configuration, deadline=soon())
    assert (caught.value.subject, caught.value.detail) == (path, "stale")
    assert not os.path.lexists(os.path.join(root, "box"))
    orchestrator.provision("box", configure(request), deadline=soon())


@pytest.mark.spec("622.scope1.i")
@pytest.mark.parametrize("kind", [GuestKind.LAYERED, GuestKind.ADAPTER])
def test_an_orchestrator_takes_the_guests_that_it_speaks_to_and_no_others(
    request_: SandboxRequest, root: str, kind: GuestKind
) -> None:
    configuration = configure(msgspec.structs.replace(request_, guest=kind.value))
    mine, other = (NvxcGuest, AdapterGuest) if kind is GuestKind.LAYERED else (AdapterGuest, NvxcGuest)
    with pytest.raises(Refused, match="agent"):
        Orchestrator(root, guest=other).provision("box", configuration, deadline=soon())
    assert not os.path.lexists(root)
    Orchestrator(root, guest=mine).provision("box", configuration, deadline=soon())
    stranger = Orchestrator(root, guest=other)
    with pytest.raises(Refused, match="agent"):
        stranger.start("box", deadline=soon())
    assert names(root) == PROVISIONED
    assert stranger.status("box").verdict == "stopped"
    stranger.deprovision("box", deadline=soon())


class Direct(NvxcGuest):
    kinds: ClassVar[frozenset[GuestKind]] = frozenset({GuestKind.DIRECT})


def test_a_direct_guest_has_neither_images_nor_an_upper(request_: SandboxRequest, root: str, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    direct = msgspec.structs.replace(
        request_,
        guest="direct",
        distro=None,
        format=None,
        ram_upper=False,
        mappings=MappingPolicy(readonly_paths=(str(shared),)),
    )
    configuration = configure(direct)
    assert (configuration.distro, configuration.scratch, configuration.plan.blocks) == (None, None, None)
    Orchestrator(root, guest=Direct).provision("box", configuration, deadline=soon())
    for changes in ({"ram_upper": True}, {"distro": request_.distro}, {"scratch": "x"}):
        with pytest.raises(Refused, match="direct guest"):
            configure(msgspec.structs.replace(direct, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"guest": "nobody"},
        {"distro": None},
        {"format": None},
        {"mappings": MappingPolicy(readonly_paths=("/x",))},
        {"guest": "adapter", "shares": (Share(target="/a", host="/x"),)},
        {"create_account": True},
        {"console": "stderr"},
        {"cpu_profile": "a b"},
        {"auth_timeout_ms": 0},
        {"processors": 3},
    ],
)
def test_what_a_guest_cannot_have_is_refused_before_any_file(
    request_: SandboxRequest, changes: dict[str, object]
) -> None:
    with pytest.raises(Refused):
        configure(msgspec.structs.replace(request_, kernel="/none", **changes))


@pytest.mark.spec("622.goal.1")
def test_a_share_may_not_hold_the_state_directory_that_is_to_be(
    request_: SandboxRequest, root: str, tmp_path: Path
) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    shared = msgspec.structs.replace(request_, shares=(Share(target="/in", host=str(outer)),))
    with pytest.raises(Refused) as caught:
        configure(shared, state=str(outer / "s" / "box"))
    assert caught.value.detail == "protected"
    # One beside it is no reason, and neither is a directory that the state's own lies in from afar.
    configure(shared, state=str(tmp_path / "s" / "box"))
    # Without a word about the state, the provision itself looks.
    configuration = configure(shared)
    with pytest.raises(Refused) as caught:
        Orchestrator(str(outer)).provision("box", configuration, deadline=soon())
    assert caught.value.detail == "protected"
    assert os.listdir(outer) == []
    Orchestrator(root).provision("box", configuration, deadline=soon())


def test_a_stop_without_the_runtime_s_metadata_says_what_needs_none_of_it(
    request_: SandboxRequest, root: str, tmp_path: Path
) -> None:
    orchestrator = Orchestrator(root)
    orchestrator.provision("box", configure(request_), deadline=soon())
    (tmp_path / "artifacts" / "SHA256SUMS").unlink()
    with pytest.raises(NotFound, match=r"SHA256SUMS.*stop by force, which needs none of it"):
        orchestrator.stop("box", deadline=soon())
    with pytest.raises(VmmExited):
        orchestrator.stop("box", deadline=soon(), force_within=1)
