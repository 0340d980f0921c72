"""An orchestrator in a terminal's foreground: however it ends there, a committed VMM lives on and hears nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from system import KILLED, only_linux

only_linux("terminals there are consoles, which a detached VMM never has")

from nvx_ref.store import Recovered
from nvx_ref.store.names import JOURNAL, LOG, RUNTIME
from nvx_ref.supervisor import Exited, Graceful, Live, reattach
from sandboxes import CHILD, IDENTITY, SUPPORT, Site, ask_to_stop, soon, wait_for


class Terminal:
    """A terminal with an orchestrator in its foreground."""

    def __init__(self, site: Site, mode: str) -> None:
        self.master, slave = os.openpty()
        request = {"site": site.root, "operation": "attended", "step": None, "mode": mode, "how": "exit", "hit": 1}
        self.child = subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(request)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(SUPPORT), str(SUPPORT.parents[1])])},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def wait(self, word: str) -> None:
        """Read what it prints until a word."""
        said = b""
        while word.encode() not in said:
            part = os.read(self.master, 1024)
            assert part, said
            said += part

    def end(self, how: str) -> None:
        if how == "exit":
            os.write(self.master, b"\n")
        elif how == "interrupt":
            os.write(self.master, b"\x03")
        elif how == "quit":
            os.write(self.master, b"\x1c")
        elif how == "close":
            self.close()
        else:
            self.child.send_signal(signal.SIGKILL)
        self.child.wait()

    def close(self) -> None:
        master, self.master = self.master, -1
        if master >= 0:
            os.close(master)


@contextmanager
def terminal(site: Site, mode: str) -> Iterator[Terminal]:
    made = Terminal(site, mode)
    try:
        yield made
    finally:
        made.child.kill()
        made.child.wait()
        made.close()


@pytest.mark.case("T36")
@pytest.mark.spec("620.scope3.a")
@pytest.mark.parametrize("how", ["exit", "kill", "close", "interrupt", "quit"])
def test_a_vmm_outlives_an_orchestrator_that_ends_in_its_terminal(provisioned: Site, how: str) -> None:
    with terminal(provisioned, "serve") as shown:
        shown.wait("up")
        shown.end(how)
        expected = {"exit": 0, "kill": KILLED, "close": -signal.SIGHUP, "quit": -signal.SIGQUIT}
        assert shown.child.returncode == expected.get(how, shown.child.returncode)
        assert (shown.child.returncode == 0) == (how == "exit")
    with provisioned.lock() as locked:
        found = reattach(locked, IDENTITY, deadline=soon())
        assert isinstance(found, Live)
        with found.vmm as vmm:
            assert "signal" not in provisioned.path(LOG).read_text()
            assert isinstance(vmm.stop(ask_to_stop, soon()), Graceful)


@pytest.mark.case("T36")
@pytest.mark.spec("656.launch.f")
def test_an_interrupt_during_a_launch_leaves_nothing_half_done(provisioned: Site) -> None:
    before = provisioned.listing()
    with terminal(provisioned, "silent") as shown:
        shown.wait("waiting")
        shown.end("interrupt")
    assert provisioned.stand_ins() == []
    assert provisioned.listing() == before | {LOG}


@pytest.mark.case("T36")
@pytest.mark.spec("620.today.1")
@pytest.mark.parametrize("how", ["close", "quit", "kill"])
def test_a_launch_whose_terminal_goes_is_recovered(provisioned: Site, how: str) -> None:
    with terminal(provisioned, "silent") as shown:
        shown.wait("waiting")
        shown.end(how)
    assert len(provisioned.stand_ins()) == 1
    assert JOURNAL in provisioned.listing()
    with provisioned.lock() as locked:
        found = reattach(locked, IDENTITY, deadline=soon())
    assert isinstance(found, Exited)
    assert found.recovery is not None
    assert found.recovery.kind is Recovered.TERMINATED
    wait_for(lambda: not provisioned.stand_ins(), "the VMM ended")
    assert provisioned.listing().isdisjoint({JOURNAL, RUNTIME})
