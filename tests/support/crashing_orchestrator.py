"""One operation of an orchestrator in a process of its own, which ends at a step: ``REQUEST`` as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys

from nvx_ref.steps import Step
from nvx_ref.store import CallerFiles, Store
from nvx_ref.supervisor import Live, VmmCommand, launch, peer_probe, reattach
from sandboxes import CONFIGURATION, CRASHED, IDENTITY, NAME, STAND_IN, ask_to_stop, soon, wait_until_served


def main() -> None:
    request = json.loads(sys.argv[1])

    hits = 0

    def crash(step: Step) -> None:
        nonlocal hits
        hits += step == request["step"]
        if step == request["step"] and hits == request["hit"]:
            if request["how"] == "kill":
                signal.raise_signal(signal.SIGKILL)
            os._exit(CRASHED)

    store = Store(f"{request['site']}/s", CallerFiles("config.json", ("disk.img",)), observer=crash)
    command = VmmCommand([sys.executable, "-I", str(STAND_IN), f"{request['site']}/lifeline", request["mode"]])
    operation = request["operation"]
    if operation == "provision":
        with store.lock_provision(NAME, deadline=soon()) as locked:
            crash(Step.PROVISION_LOCKED)
            locked.write_configuration(CONFIGURATION)
    elif operation == "start":
        with store.lock_existing(NAME, deadline=soon()) as locked:
            found = reattach(locked, IDENTITY, peer_probe, deadline=soon())
            assert not isinstance(found, Live), "running"
            with launch(locked, IDENTITY, lambda _: command) as starting:
                if request["mode"] == "serve":
                    wait_until_served(starting)
                    crash(Step.START_ENDPOINT_UP)
                starting.commit()
    elif operation == "stop":
        with store.lock_existing(NAME, deadline=soon()) as locked:
            found = reattach(locked, IDENTITY, deadline=soon())
            assert isinstance(found, Live), found
            found.vmm.stop(ask_to_stop, soon(), 10)
    elif operation == "remove":
        with store.lock_removal(NAME, deadline=soon()) as locked:
            reattach(locked, IDENTITY, deadline=soon())
            locked.remove()
    # What is committed goes on without its orchestrator.
    os._exit(0)


if __name__ == "__main__":
    main()
