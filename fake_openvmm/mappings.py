"""The direct guest's table of mappings: which part of a share is mounted where (contract openvmm 3.6)."""

from __future__ import annotations

import os
import stat

from fake_openvmm import nvxc
from fake_openvmm.shares import is_link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.machine import MachineConfig, Share, Tools

NO_ENTRY, INPUT_OUTPUT, NO_KIND, LOOP = 2, 5, 22, 40
"""Errors as a Linux guest numbers them."""


class MappingRefused(Exception):  # noqa: N818 - what the guest answers
    """A mount that failed: `status` is its errno."""

    def __init__(self, status: int) -> None:
        super().__init__(os.strerror(status))
        self.status = status


class Mappings:
    """The mappings of one guest.

    Args:
        announced: how many may come.
        needed: whether all of them must have come before a workload starts.
    """

    def __init__(self, config: MachineConfig, tools: Tools, announced: int, *, needed: bool = True) -> None:
        self._config = config
        self._tools = tools
        self._announced = announced
        self._needed = needed
        self._applied = 0
        self._requests = 0
        self._failed = False

    @property
    def complete(self) -> bool:
        """Whether every mapping that was announced is there."""
        return not self._failed and (not self._needed or self._applied == self._announced)

    def apply(self, first: int, entries: list[nvxc.Mapping]) -> None:
        """Mount the entries in their order.

        Raises:
            InvalidRequest: they don't follow what has been applied, are more than announced, or one has failed before.
            MappingRefused: one can't be mounted; those before it are, and nothing more will be.
        """
        if self._failed or first != self._applied or first + len(entries) > self._announced:
            raise nvxc.InvalidRequest("mappings out of turn or beyond their number")
        self._requests += 1
        knobs = self._tools.knobs
        for entry in entries:
            if knobs.integer("refuse_maps", 0) == self._requests:
                self._refuse(entry, knobs.integer("refuse_status", nvxc.DENIED))
            if knobs.integer("refuse_mapping", 0) == self._applied + 1:
                self._refuse(entry, knobs.integer("refuse_status", nvxc.DENIED))
            problem = self._problem(os.fsdecode(entry.source))
            if problem:
                self._refuse(entry, problem)
            self._tell("map", entry)
            self._applied += 1

    def _refuse(self, entry: nvxc.Mapping, status: int) -> None:
        self._failed = True
        self._tell("map_refused", entry, status=status)
        raise MappingRefused(status)

    def _tell(self, kind: str, entry: nvxc.Mapping, **more: int) -> None:
        self._tools.evidence.event(
            kind,
            index=self._applied,
            source=os.fsdecode(entry.source),
            target=os.fsdecode(entry.target),
            readOnly=entry.read_only,
            **more,
        )

    def _problem(self, source: str) -> int:
        """The errno with which mounting `source` fails, 0 if it doesn't."""
        share, inside = self._find(source)
        if share is None:
            return NO_ENTRY
        # What has been resolved has slashes, on every system.
        path = f"{share.host.rstrip('/')}/{inside}" if inside else share.host
        if _hidden(share, path):
            return NO_ENTRY
        try:
            found = os.lstat(path)
        except OSError as error:
            return error.errno or INPUT_OUTPUT
        if is_link(found):
            return LOOP
        mode = found.st_mode
        return 0 if stat.S_ISDIR(mode) or stat.S_ISREG(mode) else NO_KIND

    def _find(self, source: str) -> tuple[Share | None, str]:
        if not self._config.aggregate:
            return (self._config.shares[0] if self._config.shares else None), source
        name, _, inside = source.partition("/")
        return next((share for share in self._config.shares if share.name == name), None), inside


def _hidden(share: Share, path: str) -> bool:
    """Whether the nearest path of the policy at or above `path` denies it; what leads to an allowed one shows."""
    if any(allowed.startswith(f"{path}/") for allowed in share.allowed):
        return False
    while len(path) >= len(share.host):
        if path in share.allowed:
            return False
        if path in share.denied:
            return True
        above = os.path.dirname(path)
        if above == path:
            break
        path = above
    return False
