"""Can KVM run a guest here? A page of code is run and timed, and the register is set at which nested hosts fail.

That `/dev/kvm` opens means little: a nested host may interpret every instruction, a thousand times too slowly, or stop
at the first that its interpreter doesn't know.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
import sys
import time

from harness.backends.probes.device import Unfit, open_device

assert sys.platform != "win32"  # noqa: S101 - tells type checkers which half of the world this is

import fcntl  # noqa: E402

DEVICE = "/dev/kvm"
API_VERSION = 12
CREATE_VM, CREATE_VCPU, RUN, GET_VCPU_MMAP_SIZE, GET_API_VERSION = 0xAE01, 0xAE41, 0xAE80, 0xAE04, 0xAE00
SET_USER_MEMORY_REGION = 0x4020AE46
SET_REGS, GET_SREGS, SET_SREGS = 0x4090AE82, 0x8138AE83, 0x4138AE84
GET_SUPPORTED_CPUID, SET_CPUID2 = 0xC008AE05, 0x4008AE90
GET_MSRS, SET_MSRS = 0xC008AE88, 0x4008AE89

EXIT_REASON_OFFSET, SUBERROR_OFFSET = 8, 32
EXIT_HLT, EXIT_FAIL_ENTRY, EXIT_INTERNAL_ERROR, EXIT_INTR = 5, 9, 17, 10
ARCH_CAPABILITIES = 0x10A
CPUID_ENTRIES = 256

PAGE = 4096
CODE = 0x1000
TURNS = 500_000
INSTRUCTIONS = 2 * TURNS
LONGEST = 0.05
"""Seconds for a million instructions: a processor takes well under one millisecond, an interpreter a second."""


def program(turns: int) -> bytes:
    """Return real-mode code that counts down and halts: two instructions a turn."""
    return b"\x66\xb9" + turns.to_bytes(4, "little") + b"\x66\x49\x75\xfc" + b"\xf4"


def check() -> str:
    """Run the code and set the register.

    Returns:
        What was seen, for people.

    Raises:
        Unfit: A guest can't run.
    """
    system = open_device(
        DEVICE, absent="load kvm_intel or kvm_amd, or turn on virtualisation", denied="join the group kvm"
    )
    try:
        if (version := _ask("tell its version", system, GET_API_VERSION)) != API_VERSION:
            raise Unfit(f"{DEVICE} speaks version {version} of its interface, not {API_VERSION}")
        machine = _ask("create a virtual machine", system, CREATE_VM)
        try:
            return _in_machine(system, machine)
        finally:
            os.close(machine)
    finally:
        os.close(system)


def _in_machine(system: int, machine: int) -> str:
    memory = mmap.mmap(-1, 2 * PAGE)
    memory[: len(program(TURNS))] = program(TURNS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _ask("give it memory", machine, SET_USER_MEMORY_REGION, struct.pack("<IIQQQ", 0, 0, CODE, 2 * PAGE, address))
    vcpu = _ask("create a processor", machine, CREATE_VCPU)
    try:
        size = _ask("tell the size of a processor's state", system, GET_VCPU_MMAP_SIZE)
        with mmap.mmap(vcpu, size) as state:
            # The features come first: a processor that has run takes no others.
            faults, seconds = _refused(system, vcpu), _run(vcpu, state)
    finally:
        os.close(vcpu)
    if seconds > LONGEST:
        rate = f"{INSTRUCTIONS / seconds / 1e6:.1f} million instructions a second"
        faults.insert(0, f"it runs {rate}, as an interpreter does")
    if faults:
        raise Unfit(f"{'; '.join(faults)} (nested KVM)")
    return f"{INSTRUCTIONS:,} instructions in {seconds * 1000:.1f} ms"


def _refused(system: int, vcpu: int) -> list[str]:
    """Give the processor the host's features, then its own ARCH_CAPABILITIES, as every VM monitor does."""
    features = bytearray(struct.pack("<II", CPUID_ENTRIES, 0) + bytes(40 * CPUID_ENTRIES))
    _ask("tell its features", system, GET_SUPPORTED_CPUID, features)
    _ask("take the host's features", vcpu, SET_CPUID2, features)
    if not _offers_arch_capabilities(features):
        return []
    wanted = bytearray(struct.pack("<IIIIQ", 1, 0, ARCH_CAPABILITIES, 0, 0))
    try:
        known = fcntl.ioctl(system, GET_MSRS, wanted)
    except OSError:
        known = 0
    if known != 1:
        return []
    (value,) = struct.unpack_from("<Q", wanted, 16)
    try:
        done = fcntl.ioctl(vcpu, SET_MSRS, bytearray(wanted))
    except OSError:
        done = 0
    return [] if done == 1 else [f"MSR 0x10a can't be set to the {value:#x} that it offers"]


def _offers_arch_capabilities(features: bytearray) -> bool:
    (count,) = struct.unpack_from("<I", features)
    for number in range(count):
        function, index, _, _, _, _, edx = struct.unpack_from("<7I", features, 8 + 40 * number)
        if (function, index) == (7, 0):
            return bool(edx >> 29 & 1)
    return False


def _run(vcpu: int, state: mmap.mmap) -> float:
    special = bytearray(312)
    _ask("tell its segments", vcpu, GET_SREGS, special)
    # The code segment is the first of the structure: base and selector are zero for code below 64 KiB.
    struct.pack_into("<QIH", special, 0, 0, 0xFFFF, 0)
    _ask("take its segments", vcpu, SET_SREGS, special)
    general = bytearray(144)
    struct.pack_into("<QQ", general, 128, CODE, 2)
    _ask("take its registers", vcpu, SET_REGS, general)
    # A busy machine may run something else meanwhile: what counts is this thread's own time, its guest's included.
    begun = time.thread_time()
    while True:
        try:
            fcntl.ioctl(vcpu, RUN)
        except OSError as error:
            if error.errno == errno.EINTR:
                continue
            raise Unfit(f"a guest doesn't run: {error.strerror}") from error
        reason = int.from_bytes(state[EXIT_REASON_OFFSET : EXIT_REASON_OFFSET + 4], "little")
        if reason != EXIT_INTR:
            break
    seconds = time.thread_time() - begun
    if reason in {EXIT_INTERNAL_ERROR, EXIT_FAIL_ENTRY}:
        detail = int.from_bytes(state[SUBERROR_OFFSET : SUBERROR_OFFSET + 4], "little")
        raise Unfit(f"a guest's first page of code ends in KVM's exit {reason}, detail {detail:#x}")
    if reason != EXIT_HLT:
        raise Unfit(f"a guest's first page of code ends in KVM's exit {reason}, not in its halt")
    return seconds


def _ask(what: str, descriptor: int, request: int, argument: bytes | bytearray | int = 0) -> int:
    try:
        result = fcntl.ioctl(descriptor, request, argument)
    except OSError as error:
        raise Unfit(f"KVM can't {what}: {error.strerror}") from error
    return result if isinstance(result, int) else 0
