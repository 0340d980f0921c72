"""A sandbox's whole life on Windows, with the bundled fake: the reference in this process, the VMM in its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import wine

wine.only_windows()

import msgspec

from harness import images, python
from nvx_ref import errors
from nvx_ref.configuration import SandboxRequest, configure
from nvx_ref.deadline import Deadline
from nvx_ref.images import ImageFormat, verify_distro
from nvx_ref.nvxc import ExecRequest
from nvx_ref.orchestrator import Orchestrator
from nvx_ref.platform import process
from nvx_ref.platform.windows import native
from nvx_ref.supervisor import Forced, Graceful
from windows_holders import LOCKED, holding, let_go, lock_out

NAME = "box"
RUNNING = {"config.json", "lifecycle.lock", "runtime.json", "control.capability", "openvmm.log"}
STOPPED = {"config.json", "lifecycle.lock", "openvmm.log", "outcome.json"}


def soon() -> Deadline:
    return Deadline.after(120)


class Site:
    """A state root, artifacts, images and a fake."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.artifacts = images.write_artifacts(os.path.join(root, "artifacts"))
        self.images = images.unpack(os.path.join(root, "images"))
        side = os.path.join(root, "side.json")
        Path(side).write_text("{}")
        self.command = python.write_launcher(
            os.path.join(root, "vmm.py"), side_file=side, token=NAME, traces=os.path.join(root, "x.")
        )
        self.orchestrator = Orchestrator(os.path.join(root, "s"))

    def request(self, **more: object) -> SandboxRequest:
        fields = {
            "distro": self.images.erofs,
            "format": "erofs",
            "scratch": self.images.scratch,
            "openvmm": self.command,
            "kernel": self.artifacts.kernel,
            "initrd": self.artifacts.initramfs,
            "manifest": self.artifacts.manifest,
            **more,
        }
        return msgspec.convert({k: v for k, v in fields.items() if v is not None}, type=SandboxRequest)

    def provision(self, **more: object) -> None:
        configuration = configure(self.request(**more), state=self.orchestrator.store.path(NAME))
        self.orchestrator.provision(NAME, configuration, deadline=soon())

    def listing(self) -> set[str]:
        return set(os.listdir(self.orchestrator.store.path(NAME)))

    def say(self, *argv: str) -> tuple[str, bytes]:
        output: list[bytes] = []
        result = self.orchestrator.exec(
            NAME, ExecRequest(argv=argv), deadline=soon(), output=lambda _, data: output.append(data)
        )
        return f"{result.category} {result.status}", b"".join(output)


@pytest.fixture
def site() -> Iterator[Site]:
    root = tempfile.mkdtemp(prefix="nvx")
    os.mkdir(os.path.join(root, "images"))
    made = Site(root)
    yield made
    try:
        if made.orchestrator.status(NAME).verdict == "live":
            made.orchestrator.stop(NAME, deadline=Deadline.after(0.1), force_within=10)
    except errors.NvxError:
        pass
    shutil.rmtree(root, ignore_errors=True)


def test_a_sandbox_lives_and_is_removed(site: Site) -> None:
    site.provision()
    assert site.listing() == {"config.json", "lifecycle.lock"}
    started = site.orchestrator.start(NAME, deadline=soon())
    assert site.listing() == RUNNING
    assert site.orchestrator.status(NAME).verdict == "live"
    assert site.orchestrator.reattach(NAME, deadline=soon()).verdict == "live"
    assert site.say("/bin/echo", "up") == ("exit 0", b"up\n")
    assert site.say("/bin/sh", "-c", 'echo kept > "$HOME/note"; exit 7') == ("exit 7", b"")
    with process.Pin.open(started.pid) as pin:
        assert isinstance(site.orchestrator.stop(NAME, deadline=soon()), Graceful)
        assert pin.has_exited()
        assert pin.exit_status() == 0
    assert site.listing() == STOPPED
    site.orchestrator.start(NAME, deadline=soon())
    assert site.say("/bin/sh", "-c", 'cat "$HOME/note" 2>/dev/null || echo gone') == ("exit 0", b"kept\n")
    site.orchestrator.stop(NAME, deadline=soon())
    site.orchestrator.deprovision(NAME, deadline=soon())
    assert not os.path.exists(site.orchestrator.store.path(NAME))


@pytest.mark.case("T55")
def test_images_are_guarded_until_the_vm_is_ready_and_the_scratch_for_as_long_as_it_runs(site: Site) -> None:
    site.provision()
    seen: list[str] = []

    def look(step: object) -> None:
        if str(step) == "start.spawned":
            for path in (site.images.erofs, site.artifacts.kernel, site.images.scratch):
                try:
                    os.replace(path, path + ".moved")
                except PermissionError:
                    seen.append(os.path.basename(path))
                else:
                    os.replace(path + ".moved", path)

    watched = Orchestrator(os.path.join(site.root, "s"), observer=look)
    watched.start(NAME, deadline=soon())
    assert seen == ["distro.erofs", "vmlinux", "scratch.ext4"]
    with open(site.artifacts.initramfs, "ab"):
        pass
    with pytest.raises(PermissionError):
        os.unlink(site.images.scratch)
    site.orchestrator.stop(NAME, deadline=soon())
    os.unlink(site.images.scratch)


def test_a_forced_stop_says_so(site: Site) -> None:
    # However short its time is, a guest that obeys has answered before the force now and then, and ended before it.
    Path(site.root, "side.json").write_text('{"knobs": {"ignore_stop": true}}')
    site.provision(scratch=None, ramUpper=True)
    started = site.orchestrator.start(NAME, deadline=soon())
    with process.Pin.open(started.pid) as pin:
        stopped = site.orchestrator.stop(NAME, deadline=Deadline(0.0), force_within=10)
        assert isinstance(stopped, Forced)
        assert pin.exit_status() == process.ENDED_BY_FORCE
    assert site.orchestrator.status(NAME).verdict == "stopped"
    site.orchestrator.deprovision(NAME, deadline=soon())


@pytest.mark.case("T08")
@pytest.mark.case("T03")
@pytest.mark.spec("656.reattach.d", "656.tests.l")
def test_a_vmm_that_this_user_may_not_look_at_is_unknown_kept_and_left_running(site: Site) -> None:
    site.provision(scratch=None, ramUpper=True)
    started = site.orchestrator.start(NAME, deadline=soon())
    kept = site.listing()
    strong = native.open_process(native.PROCESS_TERMINATE, False, started.pid)
    try:
        with process.Pin.open(started.pid) as pin:
            lock_out(started.pid)
            found = site.orchestrator.status(NAME)
            assert (found.verdict, "denied" in found.reason.lower()) == ("indeterminate", True)
            for attempt in (
                lambda: site.orchestrator.start(NAME, deadline=soon()),
                lambda: site.orchestrator.stop(NAME, deadline=Deadline.after(0.1), force_within=10),
                lambda: site.orchestrator.deprovision(NAME, deadline=soon()),
            ):
                with pytest.raises(errors.Indeterminate):
                    attempt()
            assert site.listing() == kept
            assert not pin.has_exited()
            native.terminate_process(strong, process.ENDED_BY_FORCE)
            assert pin.wait(soon())
    finally:
        native.release(strong)
    assert site.orchestrator.status(NAME).verdict == "exited"
    site.orchestrator.deprovision(NAME, deadline=soon())


@pytest.mark.case("T57")
def test_a_start_opens_images_that_nobody_can_read_and_reads_nothing_of_them(site: Site) -> None:
    site.provision()
    with holding(LOCKED, site.images.erofs, site.artifacts.kernel, site.artifacts.initramfs) as locker:

        def at(step: object) -> None:
            if str(step) == "start.spawned":
                # From here on it is the VMM that reads.
                let_go(locker)

        Orchestrator(os.path.join(site.root, "s"), observer=at).start(NAME, deadline=soon())
    assert site.say("/bin/echo", "up") == ("exit 0", b"up\n")
    site.orchestrator.stop(NAME, deadline=soon())


@pytest.mark.case("T57")
@wine.differs("locks of bytes keep nobody from reading them")
def test_an_explicit_verification_fails_where_nothing_can_be_read(site: Site) -> None:
    with holding(LOCKED, site.images.erofs), pytest.raises(errors.NvxError):
        verify_distro(site.images.erofs, format=ImageFormat.EROFS)
    verify_distro(site.images.erofs, format=ImageFormat.EROFS)
