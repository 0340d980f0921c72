"""Contract openvmm 5: of several faults the one of the earliest step is reported."""

from __future__ import annotations

import os
from typing import NamedTuple

import pytest

from tests.support.openvmm_stand import CAPABILITY, Stand


class Fault(NamedTuple):
    step: str
    changes: str
    text: str
    status: int = 1
    report: bool = True


FAULTS = [
    Fault("1 parse", "!--bogus", "unexpected argument '--bogus' found", 2, report=False),
    Fault("3 report destination", "microvm-report=@/existing", "destination already exists", report=False),
    Fault("2 host loopback precheck", "host-loopback=allow", "requires --host-loopback-forward"),
    Fault("4 option validation", "processors=3", "does not support 3 vCPUs"),
    Fault("4 network", "net=10.0.0.2/24 network-profile=portable net-tap=tap0", "--net-tap"),
    Fault("4 host directories", "mount=/mnt/s,@/absent", "failed to inspect microVM filesystem"),
    Fault("4 console endpoints", "microvm-control-console=listen=@/absent/c.sock", "failed to canonicalize"),
    Fault("4 capability", "", "UnexpectedEof"),
    Fault("4 distinct endpoints", "virtio-console=listen=@/same microvm-control-console=listen=@/same", "must differ"),
    Fault("5 boot console", "virtio-console=listen=@/existing", "existing: Address already in use"),
    Fault("5 control socket", "microvm-control-console=listen=@/open/c.sock", "mode 0700"),
    Fault("6 memory", "memory=0", "memory size must be nonzero"),
    Fault("6 blocks", "microvm-sandbox-block=scratch:file:@/nodisk", "nodisk"),
    Fault("7 kernel", "kernel=@/absent", "failed to open kernel"),
    Fault("7 initrd", "initrd=@/absent", "failed to open initrd"),
    Fault("7 reserved tokens", "cmdline=nr_cpus=2", "reserved token nr_cpus="),
    Fault("8 length", f"cmdline={'x' * 3000}", "bytes long after device discovery"),
    Fault("8 machine", "kernel=@/initrd", "not an uncompressed x86-64 ELF64 image"),
]


def merged(faults: list[Fault]) -> str:
    """All of them at once; where two change one option, the earlier fault's change holds."""
    changes: dict[str, str] = {}
    for fault in faults:
        for change in fault.changes.split():
            changes.setdefault(change.partition("=")[0], change)
    return " ".join(changes.values())


@pytest.mark.parametrize("index", range(len(FAULTS)), ids=[fault.step for fault in FAULTS])
def test_the_earliest_step_wins(stand: Stand, index: int) -> None:
    (stand.path / "existing").write_text("x")
    os.mkdir(stand.path / "open", 0o755)
    fault = FAULTS[index]
    steps = [other.step for other in FAULTS[index:]]
    stand.start(stand.argv(merged(FAULTS[index:])), stdin=b"short" if "4 capability" in steps else CAPABILITY)
    outcome = stand.finish()
    assert outcome.status == fault.status
    assert fault.text in outcome.log.splitlines()[-1 if fault.status == 1 else 0]
    assert (outcome.category == "vmm-failure") == fault.report
    assert (stand.path / "existing").read_text() == "x"
