"""Many threads and processes at once on locks, claims and launches: short here, longer with ``--sweep full``."""

from __future__ import annotations

import json
import os
import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from nvx_ref.errors import NotFound
from nvx_ref.store import Claim, Recovered, claim
from nvx_ref.store.names import LOCK, LOG, RUNTIME
from nvx_ref.supervisor import Exited, Graceful, Live, inspect, launch, reattach
from sandboxes import (
    CONFIGURATION,
    IDENTITY,
    NAME,
    SUPPORT,
    Site,
    ask_to_stop,
    ended,
    log_of,
    past,
    soon,
    stranger,
    wait_until_served,
    write_journal,
    write_runtime,
)
from system import PYTHON, SLOWER, environment, open_descriptors, unix

pytestmark = [pytest.mark.stress, pytest.mark.timeout(800)]

THREADS = 48 // SLOWER


@pytest.fixture
def turns(request: pytest.FixtureRequest) -> int:
    """By how much more is done in a full run."""
    return 10 if request.config.getoption("--sweep", "quick") == "full" else 1


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long a busy machine keeps a forked child from its exec is not what these tests are about."""
    monkeypatch.setattr(claim, "CLAIM_WAIT", 60.0)


@pytest.fixture(autouse=True)
def no_leak() -> Iterator[None]:
    before = len(open_descriptors())
    yield
    assert len(open_descriptors()) <= before


def together(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run threads that begin at one moment; the first failure of any of them is the test's."""
    barrier = threading.Barrier(count)
    faults: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait(120)
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised by the test's own thread below
            faults.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


@contextmanager
def storm(count: int = 4) -> Iterator[None]:
    """Threads that fork and execute programs as fast as they can, each with a copy of every descriptor until then."""
    over = threading.Event()

    def spawn() -> None:
        while not over.is_set():
            subprocess.run(["/bin/true"], pass_fds=[0], check=True, start_new_session=True)

    threads = [threading.Thread(target=spawn) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def named(site: Site, number: int) -> str:
    """Provision a sandbox of one thread's own, and return its name."""
    name = f"{NAME}{number}"
    with site.store.lock_provision(name, deadline=soon()) as locked:
        locked.write_configuration(CONFIGURATION)
    return name


@pytest.mark.case("T41")
@pytest.mark.spec("620.acc.12", "656.valid.c")
def test_one_holder_among_many_threads(site: Site, turns: int) -> None:
    inside = threading.Lock()

    def work(number: int) -> None:
        choose = random.Random(number)  # noqa: S311 - an order, no secret
        for _ in range(3 * turns):
            turn = choose.choice(["provision", "provision", "existing", "remove", "give up"])
            takes = {"existing": site.store.lock_existing, "remove": site.store.lock_removal}
            try:
                with takes.get(turn, site.store.lock_provision)(NAME, deadline=soon()) as locked:
                    assert inside.acquire(blocking=False), "two holders"
                    found = locked.read_configuration()
                    if turn == "provision" and found is None:
                        locked.write_configuration(CONFIGURATION)
                    assert turn != "existing" or found == CONFIGURATION
                    if turn == "remove":
                        locked.recover()
                    inside.release()
                    if turn == "remove":
                        locked.remove()
            except NotFound:
                assert turn in {"existing", "remove"}

    together(work)
    if site.path().exists():
        assert site.listing() == {"config.json", LOCK}


@pytest.mark.case("T41")
@pytest.mark.spec("620.acc.12")
def test_one_holder_among_many_processes(site: Site, turns: int) -> None:
    witness = Path(site.root, "witness")
    witness.touch()
    words = [PYTHON, str(SUPPORT / "lock_worker.py"), site.store.root, NAME, str(witness), str(12 * turns)]
    variables = environment(str(SUPPORT.parents[1]))
    workers = [
        subprocess.Popen([*words, str(seed)], env=variables, stdout=subprocess.DEVNULL)
        for seed in range(12 // SLOWER + 1 if turns == 1 else THREADS)
    ]
    assert {worker.wait() for worker in workers} == {0}


@pytest.mark.case("T40")
@pytest.mark.spec("656.recheck", "656.valid.c")
@unix("a new process has no copies of what it doesn't inherit")
def test_claims_of_many_threads_are_told_apart_from_copies(site: Site, turns: int) -> None:
    """Each thread forks, so each holds copies of the claims of all others for a moment."""

    def work(number: int) -> None:
        name = named(site, number)
        for _ in range(turns):
            with site.store.lock_existing(name, deadline=soon()) as locked:
                begun = locked.begin_launch(IDENTITY)
                subprocess.run(["/bin/true"], pass_fds=[0], check=True)
                assert begun.abandon(child_exited=False, deadline=soon()).kind is Recovered.EXITED
                with launch(locked, IDENTITY, lambda _: site.command("silent")) as starting:
                    starting.abandon(deadline=soon())
                found = reattach(locked, IDENTITY, deadline=soon())
                assert isinstance(found, Exited)
                assert (found.record, found.recovery) == (None, None)

    together(work)
    assert site.stand_ins() == []


@pytest.mark.spec("620.scope3.k", "656.valid.c")
def test_many_threads_launch_find_and_stop_their_vmms(site: Site, turns: int) -> None:
    def work(number: int) -> None:
        name = named(site, number)
        for _ in range(turns):
            with site.store.lock_existing(name, deadline=soon()) as locked:
                with launch(locked, IDENTITY, site.serving) as starting:
                    wait_until_served(starting)
                    starting.commit().close()
                found = reattach(locked, IDENTITY, deadline=soon())
                assert isinstance(found, Live)
                with found.vmm as vmm:
                    assert isinstance(vmm.stop(ask_to_stop, soon()), Graceful)
            assert RUNTIME not in os.listdir(site.store.path(name))

    together(work, 16 // SLOWER if turns == 1 else THREADS)
    assert site.stand_ins() == []


@pytest.mark.case("T40")
@pytest.mark.spec("656.recheck")
@pytest.mark.parametrize("left", ["marker", "journal", "record"])
@unix("a new process has no copies of what it doesn't inherit")
def test_what_is_over_is_never_unknown_during_a_storm_of_spawns(
    provisioned: Site, monkeypatch: pytest.MonkeyPatch, turns: int, left: str
) -> None:
    """The second witness included: the process of that number and tick is a stranger, and the claim is free."""
    from nvx_ref.platform.linux import pidfd  # noqa: PLC0415 - not on Windows

    monkeypatch.setitem(pidfd._probed, "unique", False)
    with stranger() as alive, storm():
        identity = msgspec.structs.replace(alive, pidfs_inode=None)
        for _ in range(50 * turns):
            if left == "record":
                write_runtime(provisioned, identity)
            else:
                write_journal(provisioned, None if left == "marker" else identity)
            with provisioned.lock() as locked:
                found = reattach(locked, IDENTITY, deadline=soon())
                assert isinstance(found, Exited), found
                assert (found.record is None) == (left != "record")


@pytest.mark.case("T40")
@unix("a new process has no copies of what it doesn't inherit")
def test_looks_during_a_storm_leave_no_trace(provisioned: Site, turns: int) -> None:
    log = log_of(provisioned)
    record = write_runtime(provisioned, ended(), log=log)
    with storm():
        for _ in range(150 * turns):
            found = inspect(provisioned.store, NAME, IDENTITY)
            assert isinstance(found, Exited)
            assert found.record == record
            with provisioned.store.peek(NAME) as reader:
                assert reader.look_at_claim(log) is Claim.FREE
            # A lock that was let go of is free at once, whoever was forked meanwhile.
            provisioned.store.lock_existing(NAME, deadline=past()).close()


STARTER = """
import json, sys
from nvx_ref.store import CallerFiles, Store
from nvx_ref.supervisor import Live, VmmCommand, launch, reattach
from sandboxes import IDENTITY, NAME, PYTHON, STAND_IN, soon

root, lifeline = sys.argv[1:]
store = Store(root, CallerFiles("config.json", ("disk.img",)))
print("ready", flush=True)
for _ in sys.stdin:
    with store.lock_existing(NAME, deadline=soon()) as locked:
        found = reattach(locked, IDENTITY, deadline=soon())
        if isinstance(found, Live):
            found.vmm.close()
            print(json.dumps(["running", found.vmm.record.process.pid]), flush=True)
            continue
        command = VmmCommand([PYTHON, "-I", str(STAND_IN), lifeline, "silent"])
        with launch(locked, IDENTITY, lambda _: command) as starting:
            vmm = starting.commit()
            vmm.close()
            print(json.dumps(["started", vmm.record.process.pid]), flush=True)
"""


@pytest.mark.case("T18")
@pytest.mark.spec("620.acc.12")
def test_processes_that_start_one_sandbox_at_once_have_one_vmm(provisioned: Site, turns: int) -> None:
    """50 tries in a full run, three processes each; who comes too late finds the one that runs."""
    variables = environment(str(SUPPORT), str(SUPPORT.parents[1]))
    words = [PYTHON, "-c", STARTER, provisioned.store.root, provisioned.lifeline]
    starters = [
        subprocess.Popen(words, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        for starter in starters:
            assert hear(starter) == "ready"
        for _ in range(max(1, 5 * turns // SLOWER)):
            for starter in starters:
                say(starter)
            answers = [json.loads(hear(starter)) for starter in starters]
            assert sorted(word for word, _ in answers) == ["running", "running", "started"]
            assert {pid for _, pid in answers} == set(provisioned.stand_ins())
            with provisioned.lock() as locked:
                found = reattach(locked, IDENTITY, deadline=soon())
                assert isinstance(found, Live)
                with found.vmm as vmm:
                    vmm.stop(None, soon().sooner(0.01), 30)
            assert provisioned.stand_ins() == []
    finally:
        for starter in starters:
            starter.communicate()
    assert LOG in provisioned.listing()


def say(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def hear(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()
