"""Probes of hypervisors: on this machine as it is, and against made-up devices and libraries."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from harness.backends.probes import Verdict, probe, whp

if sys.platform != "win32":
    from harness.backends.probes import kvm, mshv

linux = pytest.mark.skipif(sys.platform == "win32", reason="the device is Linux's")


@pytest.mark.parametrize("name", ["kvm", "mshv", "whp"])
def test_on_any_machine_a_probe_says_one_line(name: str) -> None:
    verdict = probe(name)
    assert verdict.reason
    assert "\n" not in verdict.reason
    assert "its probe" not in verdict.reason
    if name == "kvm" and not os.path.exists("/dev/kvm"):
        assert not verdict.works


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "probe.py"
    path.write_text(text)
    return str(path)


@linux
@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("print('ok fast')", Verdict(works=True, reason="fast")),
        ("print('noise'); print('no slow')", Verdict(works=False, reason="slow")),
        ("import os; os.abort()", Verdict(works=False, reason="its probe ended with -6 and said nothing")),
        ("raise ValueError('x')", Verdict(works=False, reason="its probe ended with 1 and said ValueError: x")),
        ("print('ok'); raise SystemExit(3)", Verdict(works=False, reason="its probe ended with 3 and said nothing")),
        ("pass", Verdict(works=False, reason="its probe ended with 0 and said nothing")),
    ],
)
def test_a_probe_that_dies_is_a_no(tmp_path: Path, text: str, verdict: Verdict) -> None:
    assert probe("kvm", script=script(tmp_path, text)) == verdict


@linux
def test_a_probe_that_hangs_is_a_no(tmp_path: Path) -> None:
    found = probe("kvm", script=script(tmp_path, "import threading; threading.Event().wait()"), limit=0.5)
    assert found == Verdict(works=False, reason="its probe didn't come back within 0.5 s")


class Kvm:
    """A made-up `/dev/kvm`: each fault is one of those that real hosts have."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.set_up = False
        self.state: Any = None

    def ioctl(self, _descriptor: int, request: int, argument: Any = 0) -> int:
        if self.fault == f"refuses {request:#x}":
            raise OSError(errno.EINVAL, "Invalid argument")
        if request == kvm.GET_API_VERSION:
            return 11 if self.fault == "version" else kvm.API_VERSION
        if request in {kvm.CREATE_VM, kvm.CREATE_VCPU}:
            return os.open(os.devnull, os.O_RDONLY)
        if request == kvm.GET_VCPU_MMAP_SIZE:
            return kvm.PAGE
        if request == kvm.GET_SUPPORTED_CPUID:
            edx = 0 if self.fault == "no register" else 1 << 29
            struct.pack_into("<II7I", argument, 0, 1, 0, 7, 0, 0, 0, 0, 0, edx)
            return 0
        if request == kvm.GET_MSRS:
            struct.pack_into("<Q", argument, 16, 0xC000069)
            return 1
        if request == kvm.SET_MSRS:
            assert struct.unpack_from("<IIIIQ", argument) == (1, 0, 0x10A, 0, 0xC000069)
            return 0 if self.fault in {"register", "no register"} else 1
        if request == kvm.RUN:
            reason, detail = {"exits": (kvm.EXIT_INTERNAL_ERROR, 1), "shuts down": (8, 0)}.get(
                self.fault, (kvm.EXIT_HLT, 0)
            )
            self.state[kvm.EXIT_REASON_OFFSET : kvm.EXIT_REASON_OFFSET + 4] = reason.to_bytes(4, "little")
            self.state[kvm.SUBERROR_OFFSET : kvm.SUBERROR_OFFSET + 4] = detail.to_bytes(4, "little")
        return 0


class State(bytearray):
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def on(monkeypatch: pytest.MonkeyPatch, made: Kvm) -> None:
    """Put a made-up device in KVM's place."""
    made.state = State(kvm.PAGE)
    real = kvm.mmap.mmap
    times = iter([0.0, 1.6 if made.fault == "slow" else 0.001])
    monkeypatch.setattr(kvm, "DEVICE", os.devnull)
    monkeypatch.setattr(kvm, "fcntl", SimpleNamespace(ioctl=made.ioctl))
    monkeypatch.setattr(kvm, "mmap", SimpleNamespace(mmap=lambda fd, size: real(-1, size) if fd == -1 else made.state))
    monkeypatch.setattr(kvm, "time", SimpleNamespace(thread_time=lambda: next(times)))


@linux
@pytest.mark.parametrize("fault", ["", "no register"])
def test_a_host_that_runs_guests_is_one(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    on(monkeypatch, Kvm(fault))
    assert kvm.check() == "1,000,000 instructions in 1.0 ms"


@linux
@pytest.mark.spec("656.valid.f")
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("version", "speaks version 11 of its interface, not 12"),
        ("slow", r"it runs 0\.6 million instructions a second, as an interpreter does \(nested KVM\)$"),
        ("register", r"MSR 0x10a can't be set to the 0xc000069 that it offers \(nested KVM\)$"),
        ("exits", "a guest's first page of code ends in KVM's exit 17, detail 0x1"),
        ("shuts down", "ends in KVM's exit 8, not in its halt"),
        ("refuses 0xae01", "KVM can't create a virtual machine: Invalid argument"),
        ("refuses 0xae41", "KVM can't create a processor: Invalid argument"),
        ("refuses 0x4020ae46", "KVM can't give it memory: Invalid argument"),
        ("refuses 0xae80", "a guest doesn't run: Invalid argument"),
    ],
)
def test_a_host_that_can_t_run_guests_says_why(monkeypatch: pytest.MonkeyPatch, fault: str, said: str) -> None:
    on(monkeypatch, Kvm(fault))
    with pytest.raises(kvm.Unfit, match=said):
        kvm.check()


@linux
@pytest.mark.parametrize("module", ["kvm", "mshv"])
def test_a_device_that_isn_t_there_or_isn_t_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str) -> None:
    tested = {"kvm": kvm, "mshv": mshv}[module]
    monkeypatch.setattr(tested, "DEVICE", str(tmp_path / "none"))
    with pytest.raises(tested.Unfit, match=r"there is no .*/none \("):
        tested.check()
    other = tmp_path / "file"
    other.touch()
    monkeypatch.setattr(tested, "DEVICE", str(other))
    with pytest.raises(tested.Unfit):
        tested.check()


@linux
@pytest.mark.parametrize("module", ["kvm", "mshv"])
def test_a_device_that_may_not_be_opened(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    tested = {"kvm": kvm, "mshv": mshv}[module]

    def refused(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tested.os, "open", refused)
    with pytest.raises(tested.Unfit, match="isn't readable and writable for this user"):
        tested.check()


@linux
@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({}, ""),
        ({"create": errno.ENOTTY}, r"of a driver before the kernel's own \(core interface 1\)"),
        ({"create": errno.ENOTTY, "check": errno.ENOTTY}, "isn't the hypervisor's: it knows none of its requests"),
        ({"create": errno.EPERM}, "gives no partition: Operation not permitted"),
    ],
)
def test_mshv_is_asked_for_a_partition(monkeypatch: pytest.MonkeyPatch, answers: dict[str, int], said: str) -> None:
    closed: list[int] = []

    def ioctl(_descriptor: int, request: int, argument: bytes) -> int:
        what = "create" if request == mshv.CREATE_PARTITION else "check"
        assert len(argument) == (16 if what == "create" else 4)
        if what in answers:
            raise OSError(answers[what], os.strerror(answers[what]))
        if what == "check":
            return 1
        closed.append(os.open(os.devnull, os.O_RDONLY))
        return closed[-1]

    monkeypatch.setattr(mshv, "DEVICE", os.devnull)
    monkeypatch.setattr(mshv, "fcntl", SimpleNamespace(ioctl=ioctl))
    if not said:
        assert mshv.check() == "a partition was created"
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(closed[0])
        return
    with pytest.raises(mshv.Unfit, match=said):
        mshv.check()


class Whp:
    """A made-up platform: each call returns what it was told, and notes that it was made."""

    def __init__(self, *, present: int = 1, fails: str = "", code: int = -0x7FF8FFFB) -> None:
        self.present = present
        self.fails = fails
        self.code = code
        self.calls: list[str] = []

    def _call(self, name: str) -> int:
        self.calls.append(name)
        return self.code if name == self.fails else 0

    def WHvGetCapability(self, code: int, buffer: Any, size: int, written: Any) -> int:  # noqa: N802
        assert (code, size) == (0, 4)
        ctypes.cast(buffer, ctypes.POINTER(ctypes.c_uint32))[0] = self.present
        ctypes.cast(written, ctypes.POINTER(ctypes.c_uint32))[0] = 4
        return self._call("capability")

    def WHvCreatePartition(self, _partition: Any) -> int:  # noqa: N802
        return self._call("create")

    def WHvSetPartitionProperty(self, _partition: Any, code: int, buffer: Any, size: int) -> int:  # noqa: N802
        assert (code, size) == (0x1FFF, 4)
        assert ctypes.cast(buffer, ctypes.POINTER(ctypes.c_uint32))[0] == 1
        return self._call("property")

    def WHvSetupPartition(self, _partition: Any) -> int:  # noqa: N802
        return self._call("set up")

    def WHvDeletePartition(self, _partition: Any) -> int:  # noqa: N802
        return self._call("delete")


def test_whp_is_asked_for_its_capability_and_a_partition() -> None:
    platform = Whp()
    assert whp.check(platform) == "a partition was set up"
    assert platform.calls == ["capability", "create", "property", "set up", "delete"]


@pytest.mark.parametrize(
    ("platform", "said", "calls"),
    [
        (Whp(present=0), "its hypervisor doesn't run", 1),
        (Whp(fails="capability"), "WHvGetCapability fails with 0x80070005", 1),
        (Whp(fails="create"), "WHvCreatePartition fails with 0x80070005", 2),
        (Whp(fails="property"), "WHvSetPartitionProperty fails with 0x80070005", 4),
        (Whp(fails="set up"), "WHvSetupPartition fails with 0x80070005", 5),
    ],
)
def test_a_platform_that_can_t_run_guests_says_why_and_keeps_no_partition(platform: Whp, said: str, calls: int) -> None:
    with pytest.raises(whp.Unfit, match=said):
        whp.check(platform)
    assert len(platform.calls) == calls
    assert ("create" in platform.calls and platform.fails != "create") is ("delete" in platform.calls)


@linux
def test_without_windows_there_is_no_platform() -> None:
    with pytest.raises(whp.Unfit, match="this isn't Windows"):
        whp.check()
