"""The report tells what guests found that are Linux itself, and nothing of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness import guests
from harness.backends.contract import GuestFacts, Look, Vm


class Side:
    """A backend's part in a test whose runs found this."""

    command: list[str]
    needle = ""

    def __init__(self, *facts: GuestFacts) -> None:
        self._facts = facts
        self.command = []

    def configure(self, *, pauses: Sequence[str] = (), knobs: Mapping[str, object] | None = None) -> None:
        """Nothing listens."""

    def close(self) -> None:
        """Nothing is open."""

    def vms(self) -> list[Vm]:
        return list(range(len(self._facts)))  # type: ignore[arg-type]

    def guest_facts(self, vm: Vm, look: Look | None = None) -> GuestFacts:
        del look
        return self._facts[vm]  # type: ignore[call-overload, no-any-return]


REAL = GuestFacts(image_format="gpt", upper="ramfs", identity="1", block_size=4096, scratch=False, kernel="6.1")


def test_each_guest_is_told_once_and_a_model_is_not() -> None:
    model = GuestFacts(image_format="erofs", upper="ext4")
    assert guests.found(Side(model)) == []
    told = guests.found(Side(REAL, model, REAL))
    assert len(told) == 1
    assert told[0]["kernel"] == "6.1"
    assert told[0]["blockSize"] == 4096
    assert told[0]["mounts"] == []
