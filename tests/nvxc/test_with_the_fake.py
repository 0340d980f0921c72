"""The reference's session, NVXC and the adapter against the bundled stand-in: two readings of one contract meet."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contract_client import CAPABILITY, Machine
from harness.adapter import AdapterClient, AdapterRefused
from nvx_ref.errors import SessionFailed, TimedOut
from nvx_ref.nvxc import ExecRequest, ExecResult, Feature, GuestRefused, MapEntry, NvxcClient
from nvx_ref.platform import endpoint
from nvx_ref.session import SessionDriver
from nvxc_guest import ignore, soon

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="the endpoint is no socket here")


def sh(script: str, **options: object) -> ExecRequest:
    return ExecRequest(argv=("/bin/sh", "-c", script), **options)  # type: ignore[arg-type]


Launch = Callable[..., Machine]


@pytest.fixture
def launch() -> Iterator[Launch]:
    machines: list[Machine] = []
    with tempfile.TemporaryDirectory(prefix="nvx", dir="/tmp") as root:

        def start(*, adapter: bool = False) -> Machine:
            machines.append(Machine(Path(root), adapter=adapter))
            return machines[-1]

        yield start
        for machine in machines:
            machine.end()


def connect(machine: Machine, capability: bytes = CAPABILITY) -> SessionDriver:
    alive = lambda: machine.process.poll() is None  # noqa: E731 - shorter than a function
    return SessionDriver(endpoint.connect(str(machine.endpoint), soon(), alive=alive), capability)


@pytest.mark.spec("620.scope4.e")
def test_a_whole_session(launch: Launch) -> None:
    machine = launch()
    with connect(machine) as driver:
        ready = driver.attach(soon())
        assert ready.epoch == 1
        nvxc = NvxcClient(driver)
        nvxc.ping(soon())
        assert nvxc.features(soon()) == Feature.CANCEL | Feature.WORKLOAD_ACCOUNT | Feature.EXEC_ENVIRONMENT
        output: dict[str, bytes] = {"stdout": b"", "stderr": b""}

        def keep(stream: str, data: bytes) -> None:
            output[stream] += data

        request = sh("pwd; echo $A; echo e >&2; exit 7", cwd="/tmp", environment=("A=é",))
        assert nvxc.exec(request, keep, soon()) == ExecResult("exit", 7)
        assert output == {"stdout": "/tmp\né\n".encode(), "stderr": b"e\n"}
        assert nvxc.exec(sh("sleep 1000", timeout_ms=20), ignore, soon()) == ExecResult("timeout", 124)
        assert nvxc.exec(sh("head -c 2000000 /dev/zero"), ignore, soon()) == ExecResult("output-limit", 125)
        with pytest.raises(GuestRefused) as caught:
            nvxc.maps([MapEntry("0", "/work")], soon())
        assert (caught.value.category, caught.value.status) == ("invalid-request", 22)
        nvxc.stop(soon())
        with pytest.raises(SessionFailed) as ended:
            driver.receive(soon())
        assert ended.value.detail == "closed"
    assert machine.exit_status() == 0


@pytest.mark.spec("620.scope4.c")
def test_a_wrong_capability_is_refused_by_a_live_process(launch: Launch) -> None:
    machine = launch()
    with connect(machine, b"x" * 32) as driver, pytest.raises(SessionFailed) as caught:
        driver.attach(soon())
    assert caught.value.detail == "authentication-or-gone"
    assert machine.process.poll() is None
    with connect(machine) as driver:
        assert driver.attach(soon()).epoch == 1


def test_a_session_in_use_answers_nobody_else(launch: Launch) -> None:
    machine = launch()
    with connect(machine) as first:
        ready = first.attach(soon())
        with connect(machine) as second:
            with pytest.raises(TimedOut) as caught:
                second.attach(soon().sooner(0.1))
            assert caught.value.detail == "no-answer"
            first.close()
            again = second.attach(soon())
    assert (again.instance, again.epoch) == (ready.instance, ready.epoch + 1)


def test_another_thread_cancels_a_program(launch: Launch) -> None:
    with connect(launch()) as driver:
        driver.attach(soon())
        nvxc = NvxcClient(driver)
        begun = threading.Event()
        results: list[ExecResult] = []
        request = sh("echo begun; exec sleep 1000")
        thread = threading.Thread(
            target=lambda: results.append(nvxc.exec(request, lambda _stream, _data: begun.set(), soon()))
        )
        thread.start()
        assert begun.wait(120)
        assert nvxc.cancel() is True
        thread.join(120)
        assert results == [ExecResult("cancelled", 137)]
        nvxc.ping(soon())


def test_an_interrupted_exec_leaves_the_session_usable(launch: Launch) -> None:
    def interrupt(stream: str, data: bytes) -> None:
        raise KeyboardInterrupt(stream, data)

    with connect(launch()) as driver:
        driver.attach(soon())
        nvxc = NvxcClient(driver)
        with pytest.raises(KeyboardInterrupt):
            nvxc.exec(sh("echo begun; exec sleep 1000"), interrupt, soon())
        assert nvxc.exec(sh("exit 3"), ignore, soon()) == ExecResult("exit", 3)


def test_an_exec_that_is_given_up_ends_the_program_in_the_guest(launch: Launch) -> None:
    machine = launch()
    with connect(machine) as driver:
        driver.attach(soon())
        with pytest.raises(TimedOut):
            NvxcClient(driver).exec(sh("exec sleep 1000"), ignore, soon().sooner(0.1))
    with connect(machine) as driver:
        assert driver.attach(soon()).epoch == 2
        assert NvxcClient(driver).exec(sh("exit 3"), ignore, soon()) == ExecResult("exit", 3)


@pytest.mark.spec("620.acc.8")
@pytest.mark.spec("622.scope4.g")
@pytest.mark.parametrize("cut", [1, 65_536])
def test_the_adapter_speaks_its_own_framing(launch: Launch, cut: int) -> None:
    machine = launch(adapter=True)
    with connect(machine) as driver:
        driver.attach(soon())
        client = AdapterClient(driver, cut=cut)
        client.hello(soon())
        assert client.facts(soon())["upper"] == "ext4"
        result = client.exec(["/bin/sh", "-c", "echo out; head -c 200000 /dev/zero >&2; exit 5"], soon())
        assert (result.category, result.status, result.stdout) == ("exit", 5, b"out\n")
        assert result.stderr == bytes(200_000)
        with pytest.raises(AdapterRefused):
            client.exec(["relative"], soon())
        client.stop(soon())
    assert machine.exit_status() == 0
