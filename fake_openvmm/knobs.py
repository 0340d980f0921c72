"""Every knob and every pause point, by name: a name that isn't here is refused loudly, so no test runs on a typo.

Knobs are for the harness. They live in the side file, never on the kernel's command line, where they would use up its
budget (contract openvmm 7).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_openvmm.machine import Json

POINTS = (
    "before_capability",
    "before_bind",
    "after_bind",
    "before_open:distro",
    "before_open:runtime",
    "before_open:custom",
    "before_open:scratch",
    "before_open:kernel",
    "before_open:initrd",
    "before_guest",
    "guest_boot",
    "guest_attach",
    "before_wait",
    "before_ready",
    "after_ready",
    "guest_trigger",
    "before_maps",
    "before_exec",
    "before_stopped",
    "before_unmount",
    "before_teardown",
    "before_publish",
    "before_exit",
)
"""Where `Pauses.at` is called, in the order of a run. `POINT#n` in a side file means the n-th time only."""

FLAG, INTEGER, TEXT, TABLE, LIST = "flag", "integer", "text", "table", "list"

FRONT = {
    "old_limit": FLAG,  # the effective line may hold 65,535 bytes instead of 2,047
    "exit_at": TABLE,  # {point: status}: end at once with this status, nothing torn down, no report
    "fail_at": TABLE,  # {point: text}: fail in the ordinary way, with report and teardown
    "crash_at": TABLE,  # {point: signal number}: die by this signal
    "never_exit": FLAG,  # after the report, stay for ever
    "slow_exit_ms": INTEGER,  # after the report, stay this long
    "exit_status": INTEGER,  # the process's status, whatever the report says
    "no_report": FLAG,  # end without a report
    "report_text": TEXT,  # publish this text instead of the report
    "report_fails": FLAG,  # writing the report fails after a good run
    "report_by_link": FLAG,  # publish by link and unlink instead of by a rename that replaces nothing
    "leave_staging": FLAG,  # leave the staging file beside the published report
    "teardown_fails": TEXT,  # "vm" or "control": these workers do not stop cleanly
    "leave_socket": FLAG,  # leave the socket behind
    "unlink_any_socket": FLAG,  # remove the socket although another one has taken its place
    "wrong_server": TEXT,  # "alive" or "gone": another process of ours is the endpoint's server
    "process_name": TEXT,  # lone surrogates U+DC80..U+DCFF stand for raw bytes
    "helper_keeps_log": FLAG,  # a child of ours keeps descriptors 1 and 2 and outlives us
    "leader_exits": FLAG,  # the first thread ends once the images are open, the others go on
    "no_listen": FLAG,  # bind, but never listen
    "socket_mode": INTEGER,  # another mode than 0600 for the socket
}

GUEST = {
    "blockSize": INTEGER,  # logical blocks of a raw EROFS image, 512 or 4096
    "boot_delay_ms": INTEGER,  # until the guest's driver starts the console; no host is accepted before
    "attach_delay_ms": INTEGER,  # from there until the agent attaches; a host gets WAIT
    "never_attaches": FLAG,  # the agent never attaches
    "features": INTEGER,  # feature mask of the guest
    "old_guest": FLAG,  # FEATURES is answered with ERROR 95, and so is MAPS
    "ignore_stop": FLAG,
    "ignore_cancel": FLAG,
    "refuse_maps": INTEGER,  # the n-th MAPS is refused
    "refuse_mapping": INTEGER,  # the n-th mapping is refused
    "refuse_status": INTEGER,  # with this errno instead of 13
    "exit_code": INTEGER,  # status of the guest when it ends well
    "guest_exit_at": TABLE,  # {point: status}: the guest powers off there
    "guest_dead_at": LIST,  # points at which the guest stops dead and the VMM stays
    "guest_hangs_at": LIST,  # points at which the guest stays on and does nothing any more
    "reboot_at": LIST,  # points at which the guest reboots in place
    "guest": TEXT,  # "silent", "chatty", "garbage" (in NVXC), "broken" (in NVXS)
    "frames": LIST,  # rules for NVXC frames, see mischief
    "host_records": LIST,  # rules for NVXS records to the host, see mischief
    "split_records": INTEGER,  # every record to the host in pieces of so many bytes
}

KNOWN = {**FRONT, **GUEST}


SIDE_FILE_STATUS = 64
"""Status of a program whose side file is refused."""


class SideFileError(Exception):
    """The side file isn't what the harness may write: status 64, before anything of the contract happens."""


class Knobs:
    """The knobs of one run, by typed getters.

    Raises:
        SideFileError: an unknown name or a value of another type, at construction; an undeclared name, at a getter.
    """

    __slots__ = ("_values",)

    def __init__(self, values: dict[str, Json] | None = None) -> None:
        """Check every name and type of `values`."""
        self._values = values or {}
        for name, value in self._values.items():
            kind = KNOWN.get(name)
            if kind is None:
                raise SideFileError(f"unknown knob {name!r}")
            if not _fits(kind, value):
                raise SideFileError(f"knob {name!r} must be a {kind}, not {value!r}")

    def __contains__(self, name: str) -> bool:
        _declared(name)
        return name in self._values

    def flag(self, name: str) -> bool:
        """Whether the knob is on; absent means off."""
        return self._get(name, FLAG) is True

    def integer(self, name: str, default: int) -> int:
        """The knob's integer, or `default`."""
        value = self._get(name, INTEGER)
        return value if isinstance(value, int) else default

    def text(self, name: str, default: str = "") -> str:
        """The knob's text, or `default`."""
        value = self._get(name, TEXT)
        return value if isinstance(value, str) else default

    def table(self, name: str) -> dict[str, Json]:
        """The knob's table, empty if absent."""
        value = self._get(name, TABLE)
        return dict(value) if isinstance(value, dict) else {}

    def items(self, name: str) -> list[Json]:
        """The knob's list, empty if absent."""
        value = self._get(name, LIST)
        return list(value) if isinstance(value, list) else []

    def _get(self, name: str, kind: str) -> Json:
        if _declared(name) != kind:
            raise SideFileError(f"knob {name!r} isn't declared as a {kind}")
        return self._values.get(name)


def _declared(name: str) -> str:
    kind = KNOWN.get(name)
    if kind is None:
        raise SideFileError(f"knob {name!r} isn't declared in fake_openvmm.knobs")
    return kind


def _fits(kind: str, value: Json) -> bool:
    if kind == FLAG:
        return isinstance(value, bool)
    if kind == INTEGER:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, {TEXT: str, TABLE: dict, LIST: list}[kind])
