"""The test adapter's agent: its own messages over opaque DATA (contract openvmm 10, items 7 and 8)."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from fake_openvmm.machine import Share
from tests.fake.machine.client import Host

HOST = "nvx_workload_uid=65534 nvx_workload_gid=65534 nvx_lifecycle=managed nvx_control_tty=hvc2"
LAYERED = f"nvx_sandbox=1 nvx_layer=distro,0xd0003000,erofs nvx_overlay_upper=ramfs {HOST}"
INITRD = b"nvx-fake-initramfs adapter\n"


class Talker:
    """Frames and unframes messages over a host's DATA."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._stream = b""

    def say(self, message: object, *, portion: int = 65_536) -> None:
        raw = json.dumps(message).encode()
        stream = len(raw).to_bytes(4, "little") + raw
        for start in range(0, len(stream), portion):
            self.host.data(stream[start : start + portion])

    def hear(self) -> Any:
        while len(self._stream) < 4 or len(self._stream) < 4 + int.from_bytes(self._stream[:4], "little"):
            self._stream += self.host.receive()
        end = 4 + int.from_bytes(self._stream[:4], "little")
        raw, self._stream = self._stream[4:end], self._stream[end:]
        return json.loads(raw)

    def call(self, op: str, **fields: object) -> Any:
        self.say({"id": 7, "op": op, **fields})
        answer = self.hear()
        assert answer.pop("id") == 7
        return answer


def started(machines: Any, make_erofs: Any, cmdline: str = LAYERED, **knobs: Any) -> Any:
    blocks = [machines.block("distro", machines.write("distro", make_erofs()))] if "nvx_layer" in cmdline else []
    config = machines.config(cmdline, *blocks, initrd=INITRD)
    root = machines.root / "export"
    root.mkdir()
    config.aggregate = True
    config.shares = [Share("0", str(root), readonly=False)]
    return machines.start(config, **knobs)


@pytest.fixture
def vm(machines: Any, make_erofs: Any) -> Any:
    return started(machines, make_erofs)


@pytest.fixture
def talker(vm: Any) -> Talker:
    return Talker(vm.host().attach())


@pytest.mark.parametrize("portion", [1, 3, 65_536])
def test_a_message_may_span_records(talker: Talker, portion: int) -> None:
    talker.say({"id": 1, "op": "hello"}, portion=portion)
    talker.say({"id": 2, "op": "hello"}, portion=portion)
    assert [talker.hear()["id"] for _ in range(2)] == [1, 2]


def test_a_record_may_hold_several_messages_and_a_part(talker: Talker) -> None:
    raw = json.dumps({"id": 5, "op": "hello"}).encode()
    message = len(raw).to_bytes(4, "little") + raw
    talker.host.data(message * 3 + message[:10])
    talker.host.data(message[10:])
    assert [talker.hear()["ok"] for _ in range(4)] == [True] * 4


def test_the_facts_are_the_guests(talker: Talker) -> None:
    facts = talker.call("facts")
    assert (facts["ok"], facts["cmdline"], facts["upper"], facts["scratch"]) == (True, LAYERED, "ramfs", False)
    assert facts["layers"][0]["filesystem"] == "erofs"


def test_a_program_runs(talker: Talker) -> None:
    answer = talker.call("exec", argv=["/bin/sh", "-c", "echo out; echo err >&2; exit 4"], timeoutMs=0)
    assert answer == {
        "ok": True,
        "category": "exit",
        "status": 4,
        "stdout": base64.b64encode(b"out\n").decode(),
        "stderr": base64.b64encode(b"err\n").decode(),
    }
    assert talker.call("exec", argv=["/bin/sleep", "60"], timeoutMs=100)["category"] == "timeout"
    big = talker.call("exec", argv=["/bin/sh", "-c", "head -c 900000 /dev/zero"])
    assert len(base64.b64decode(big["stdout"])) == 900_000


def test_mappings_are_applied_and_refused(talker: Talker, vm: Any) -> None:
    assert talker.call("maps", first=0, entries=[["0", "/work", False]]) == {"ok": True}
    refused = talker.call("maps", first=1, entries=[["9", "/x", True]])
    assert refused == {"ok": False, "category": "mapping-failed", "status": 2}
    assert [event["target"] for event in vm.witness.of("map")] == ["/work"]


def test_announced_mappings_are_needed(machines: Any, make_erofs: Any) -> None:
    direct = f"hostname=box nvx_maps=1 {HOST} virtfs_dir=/x"
    talker = Talker(started(machines, make_erofs, direct).host().attach())
    incomplete = {"ok": False, "category": "mappings-incomplete", "status": 11}
    assert talker.call("exec", argv=["/bin/true"]) == incomplete
    assert talker.call("maps", first=0, entries=[["0", "/w", False]]) == {"ok": True}
    assert talker.call("exec", argv=["/bin/true"])["category"] == "exit"


def test_a_stop_ends_the_guest(talker: Talker, vm: Any) -> None:
    assert talker.call("stop") == {"ok": True}
    assert vm.wait() == 0


def test_what_isnt_known_or_wrong_is_refused(talker: Talker) -> None:
    assert talker.call("dance") == {"ok": False, "category": "unsupported-operation", "status": 95}
    wrong: list[dict[str, Any]] = [
        {},
        {"argv": []},
        {"argv": ["true"]},
        {"argv": [1]},
        {"argv": ["/bin/true", ""]},
        {"argv": ["/bin/true"], "timeoutMs": -1},
        {"argv": ["/bin/true"], "timeoutMs": "x"},
    ]
    for fields in wrong:
        assert talker.call("exec", **fields) == {"ok": False, "category": "invalid-request", "status": 22}
    for entries in ([], [["0", "/w"]], [["0", "/w", 1]], [["0", "w", True]], "x"):
        answer = talker.call("maps", first=0, entries=entries)
        assert answer == {"ok": False, "category": "invalid-request", "status": 22}


def test_a_second_request_beside_an_exec_is_busy(talker: Talker, tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    talker.say({"id": 1, "op": "exec", "argv": ["/bin/sh", "-c", f"read line < {held}"]})
    talker.say({"id": 2, "op": "hello"})
    assert talker.hear() == {"id": 2, "ok": False, "category": "busy", "status": 16}
    held.write_text("\n")
    assert talker.hear()["category"] == "exit"


MALFORMED = {
    "no bytes": (0).to_bytes(4, "little"),
    "too many bytes": (1_048_577).to_bytes(4, "little"),
    "no JSON": b"\4\0\0\0nope",
    "no UTF-8": b"\2\0\0\0\xff\xff",
    "no object": b"\2\0\0\0[]",
    "no id": b"\x0e\0\0\0" + b'{"op":"hello"}',
    "no op": b"\x08\0\0\0" + b'{"id":1}',
    "a true id": b"\x18\0\0\0" + b'{"op":"hello","id":true}',
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_message_ends_the_guest(talker: Talker, vm: Any, raw: bytes) -> None:
    talker.host.data(raw)
    assert talker.host.at_end()
    assert vm.wait() == 125


def test_a_lost_host_leaves_no_half_message_behind(talker: Talker, vm: Any) -> None:
    talker.host.data(b"\xff\0\0\0{")
    talker.host.close()
    host = vm.host()
    host.show()
    record = host.record()
    if record.type == 6:
        record = host.record()
    host.instance, host.epoch, host.received = record.instance, record.epoch, record.sequence + 1
    assert Talker(host).call("hello")["ok"]
