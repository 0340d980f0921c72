"""Provisions, enters and removes one sandbox over and over: ``ROOT NAME WITNESS TURNS SEED``.

The witness is a lock of the test's own: whoever holds the sandbox's lock takes it without waiting, and must get it.
"""

from __future__ import annotations

import os
import random
import sys

from nvx_ref.deadline import Deadline
from nvx_ref.errors import NotFound
from nvx_ref.platform import files
from nvx_ref.store import LockedStore, Store


def inside(locked: LockedStore, witness: int, turn: str) -> None:
    assert files.try_lock(witness), "two holders"
    configuration = locked.read_configuration()
    if turn == "provision" and configuration is None:
        locked.write_configuration(b"{}")
    elif turn == "existing":
        assert configuration == b"{}"
    elif turn == "remove":
        locked.recover()
    files.unlock(witness)
    if turn == "remove":
        # Its lock ends within.
        locked.remove()


def main() -> None:
    root, name, witness_path, turns, seed = sys.argv[1:]
    store, choose = Store(root), random.Random(int(seed))  # noqa: S311 - an order, no secret
    witness = os.open(witness_path, os.O_RDWR)
    print("ready", flush=True)
    for _ in range(int(turns)):
        turn = choose.choice(["provision", "provision", "existing", "remove", "give up"])
        take = {"existing": store.lock_existing, "remove": store.lock_removal}.get(turn, store.lock_provision)
        try:
            with take(name, deadline=Deadline.after(60)) as locked:
                inside(locked, witness, turn)
        except NotFound:
            assert turn in {"existing", "remove"}


if __name__ == "__main__":
    main()
