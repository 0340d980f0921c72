"""Positive controls on the fake: a leak, a swap and a survivor made on purpose, which the witnesses must see."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from harness import stale
from harness.backends import load
from harness.errors import Late
from harness.removing import remove_tree
from harness.sandbox import Sandbox
from harness.settings import Settings, session_directory
from harness.world import World
from nvx_ref.platform import endpoint
from system import as_inherited, start_with


@pytest.fixture
def world() -> Iterator[World]:
    settings = Settings(directory=session_directory())
    made = World(settings, load(settings), label="control")
    yield made
    left = made.close()
    # A directory that its run still holds can't be removed on Windows.
    stale.release(settings.directory)
    remove_tree(settings.directory)
    assert left == ""


def started(world: World, box: Sandbox, *, keep: tuple[int, ...] = (), **paths: str) -> subprocess.Popen[bytes]:
    """Start the fake by hand, its images by path, as a launcher without a handoff would."""
    artifacts = world.artifacts
    hypervisor = str(getattr(world.backend, "hypervisor", ""))
    reader, writer = os.pipe()
    os.write(writer, b"k" * 32)
    os.close(writer)
    os.mkdir(box.directory, 0o700)
    command = [
        *world.vmm.command,
        *("--machine", "microvm"),
        *("--microvm-sandbox-block", f"distro:file:{paths.get('distro', box.distro)},ro"),
        *("--microvm-workload-identity", "65534:65534", "--microvm-lifecycle", "managed", "--single-process"),
        *("--hypervisor", hypervisor, "--memory", "256M", "--kernel", artifacts.kernel, "--initrd", artifacts.initrd),
        *("--cmdline", "nvx_sandbox=1 nvx_layer=distro,0xd0003000,erofs nvx_overlay_upper=ramfs"),
        *("--virtio-console", "none", "--microvm-control-console", f"listen={endpoint.choose(box.directory)}"),
        *("--microvm-control-auth-stdin", "--microvm-report", box.path("outcome.json")),
    ]
    log = os.open(box.path("openvmm.log"), os.O_WRONLY | os.O_CREAT, 0o600)
    child = start_with(command, stdin=reader, output=log, keep=keep)
    os.close(log)
    os.close(reader)
    return child


def end(world: World, box: Sandbox, child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for name in ("control.sock",):
        if os.path.lexists(box.path(name)):
            world.remove(box.path(name))


@pytest.mark.case("T31")
def test_a_descriptor_that_leaked_is_in_the_table_that_the_fake_took(world: World) -> None:
    world.vmm.configure(pauses=["before_capability"])
    box = Sandbox(world)
    secret = os.path.join(world.root, "images", "secret")
    with open(secret, "wb") as file:
        child = started(world, box, keep=(file.fileno(),))
        leaked = (as_inherited(file.fileno()), *box.object(secret))
        world.channel.wait_paused("before_capability", world.soon())
    (vm,) = world.vmm.vms()
    table = vm.descriptors()
    assert table is not None
    found = {one.number for one in table}
    assert found >= {0, 1, 2, leaked[0]}
    # A table of handles also has what the interpreter itself opened.
    assert world.host.serves_pipes or found == {0, 1, 2, leaked[0]}
    assert leaked in {(one.number, one.device, one.inode) for one in table}
    end(world, box, child)


def test_a_swapped_image_is_told_by_the_object_that_was_opened(world: World) -> None:
    world.vmm.configure(pauses=["before_open:distro"])
    box = Sandbox(world)
    checked = shutil.copy(box.distro, os.path.join(world.root, "images", "checked"))
    other = shutil.copy(box.distro, os.path.join(world.root, "images", "other"))
    before = box.object(checked)
    child = started(world, box, distro=checked)
    peer = world.channel.wait_paused("before_open:distro", world.soon())
    os.replace(other, checked)
    world.channel.resume(peer)
    assert world.until(lambda: world.vmm.guest_facts(world.vmm.vms()[0]).distro_file is not None)
    found = world.vmm.guest_facts(world.vmm.vms()[0]).distro_file
    assert found == box.object(checked)
    assert found != before
    end(world, box, child)


def test_an_image_that_stays_is_the_object_that_was_checked(world: World) -> None:
    box = Sandbox(world)
    child = started(world, box)
    assert world.until(lambda: any(world.vmm.guest_facts(vm).distro_file for vm in world.vmm.vms()))
    assert world.vmm.guest_facts(world.vmm.vms()[0]).distro_file == box.object(box.distro)
    end(world, box, child)


@pytest.mark.case("T23")
def test_a_fake_that_was_killed_and_not_reaped_is_gone(world: World) -> None:
    world.vmm.configure(pauses=["before_bind"])
    box = Sandbox(world)
    child = started(world, box)
    world.channel.wait_paused("before_bind", world.soon())
    found = world.processes.one("paused")
    assert {"launcher", "token"} <= found.reasons
    found.pin.end()
    world.processes.none("killed", world.soon())
    end(world, box, child)


def test_a_fake_that_never_exits_is_late(world: World) -> None:
    world.vmm.configure(pauses=["before_bind"])
    box = Sandbox(world)
    child = started(world, box)
    world.channel.wait_paused("before_bind", world.soon())
    with pytest.raises(Late, match=r"expected no VMM alive within [\d.]+ s, found 1: pid "):
        world.processes.none("after nothing", world.soon(0.1))
    end(world, box, child)


def test_a_guest_that_has_not_booted_has_no_facts(world: World) -> None:
    """Facts that aren't there yet are no facts: None, not a guess."""
    world.vmm.configure(pauses=["before_bind"])
    box = Sandbox(world)
    child = started(world, box)
    world.channel.wait_paused("before_bind", world.soon())
    (vm,) = world.vmm.vms()
    assert world.vmm.guest_facts(vm).upper is None
    assert (vm.status(), vm.requests(), vm.attachments()) == (None, [], [])
    end(world, box, child)
