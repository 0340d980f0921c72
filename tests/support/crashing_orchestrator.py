"""One operation of an orchestrator in a process of its own, which ends at a step: ``REQUEST`` as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable

from nvx_ref.steps import Observer, Step
from nvx_ref.store import CallerFiles, Store
from nvx_ref.supervisor import Live, VmmCommand, launch, peer_probe, reattach
from sandboxes import CONFIGURATION, CRASHED, IDENTITY, NAME, PYTHON, STAND_IN, ask_to_stop, soon, wait_until_served
from system import end_at_once


def attend() -> None:
    """Take the terminal on the standard streams, as a program that a shell started in the foreground has it."""
    import fcntl  # noqa: PLC0415 - not on Windows
    import termios  # noqa: PLC0415 - likewise

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


Command = Callable[[str], VmmCommand]


def start(store: Store, command: Command, crash: Observer, *, serves: bool, attended: bool) -> None:
    with store.lock_existing(NAME, deadline=soon()) as locked:
        found = reattach(locked, IDENTITY, peer_probe, deadline=soon())
        assert not isinstance(found, Live), "running"
        with launch(locked, IDENTITY, command) as starting:
            if serves:
                wait_until_served(starting)
                crash(Step.START_ENDPOINT_UP)
            elif attended:
                print("waiting", flush=True)
                starting.process.wait(soon())
            starting.commit()
    if attended:
        print("up", flush=True)
        sys.stdin.readline()


def run(operation: str, store: Store, command: Command, crash: Observer, *, serves: bool) -> None:
    if operation == "provision":
        with store.lock_provision(NAME, deadline=soon()) as locked:
            crash(Step.PROVISION_LOCKED)
            locked.write_configuration(CONFIGURATION)
    elif operation in {"start", "attended"}:
        start(store, command, crash, serves=serves, attended=operation == "attended")
    elif operation == "stop":
        with store.lock_existing(NAME, deadline=soon()) as locked:
            found = reattach(locked, IDENTITY, deadline=soon())
            assert isinstance(found, Live), found
            found.vmm.stop(ask_to_stop, soon(), 10)
    elif operation == "remove":
        with store.lock_removal(NAME, deadline=soon()) as locked:
            reattach(locked, IDENTITY, deadline=soon())
            locked.remove()


def main() -> None:
    request = json.loads(sys.argv[1])

    hits = 0

    def crash(step: Step) -> None:
        nonlocal hits
        hits += step == request["step"]
        if step == request["step"] and hits == request["hit"]:
            if request["how"] == "kill":
                end_at_once()
            os._exit(CRASHED)

    if request["operation"] == "attended":
        attend()
    store = Store(f"{request['site']}/s", CallerFiles("config.json", ("disk.img",)), observer=crash)
    words = [PYTHON, "-I", str(STAND_IN), f"{request['site']}/lifeline", request["mode"]]
    serves = request["mode"] == "serve"
    run(request["operation"], store, lambda endpoint: VmmCommand([*words, endpoint]), crash, serves=serves)
    # What is committed goes on without its orchestrator.
    os._exit(0)


if __name__ == "__main__":
    main()
