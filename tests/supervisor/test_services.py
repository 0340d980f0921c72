"""An orchestrator that is stopped with its whole control group, as a service manager does by default."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from system import PYTHON, environment, only_linux

only_linux("what ends a process there with its orchestrator is a job: test_jobs.py")

from nvx_ref.supervisor import Exited, Graceful, reattach
from sandboxes import CHILD, IDENTITY, SUPPORT, Site, ask_to_stop, soon, wait_for

ENTER = 'echo $$ >"$0/cgroup.procs" && exec "$@"'


@contextmanager
def control_group() -> Iterator[Path]:
    """Make a control group below this process's own; skips where none can be made, or none ended at once."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    roots = [words[4] for words in mounts if words[words.index("-") + 1] == "cgroup2" and words[3] == "/"]
    own = [line[4:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::/")]
    if not roots or not own:
        pytest.skip("needs control groups of version 2")
    group = Path(f"{roots[0]}/{own[0]}/nvx-test-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    kill = group / "cgroup.kill"
    try:
        if not kill.exists():
            pytest.skip("this kernel ends no control group at once (Linux 5.14 does)")
        yield group
    finally:
        if kill.exists():
            kill.write_text("1")
        # The kernel takes what was ended out of it one by one.
        wait_for(lambda: _removed(group), "the control group's end")


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


@pytest.mark.case("T36")
@pytest.mark.spec("620.scope3.a")
def test_a_vmm_ends_with_its_orchestrators_control_group_and_the_sandbox_starts_again(provisioned: Site) -> None:
    request = {"site": provisioned.root, "operation": "start", "step": None, "mode": "serve", "how": "exit", "hit": 1}
    with control_group() as group:
        subprocess.run(
            ["/bin/sh", "-c", ENTER, str(group), PYTHON, str(CHILD), json.dumps(request)],
            env=environment(str(SUPPORT), str(SUPPORT.parents[1])),
            stdin=subprocess.DEVNULL,
            check=True,
            timeout=100,
        )
        (vmm,) = provisioned.stand_ins()
        # A session of its own takes no process out of the group.
        assert str(vmm) in (group / "cgroup.procs").read_text().split()
        (group / "cgroup.kill").write_text("1")
        wait_for(lambda: provisioned.stand_ins() == [], "the VMM's end with its control group")
    with provisioned.lock() as locked:
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Exited)
        assert found.record is not None
        assert found.record.process.pid == vmm
        with provisioned.start(locked) as again:
            assert isinstance(again.stop(ask_to_stop, soon()), Graceful)
