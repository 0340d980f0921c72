"""MAPS of the direct guest (contract openvmm 3.6)."""

from __future__ import annotations

import os
import struct
from typing import Any

import pytest

from fake_openvmm import mappings
from fake_openvmm.machine import Share
from tests.fake.machine.client import ERROR, EXEC, MAPS, PING, READY, Host, exec_payload, maps_payload

HOST = "nvx_workload_uid=65534 nvx_workload_gid=65534 nvx_lifecycle=managed nvx_control_tty=hvc2"
INVALID = (ERROR, 22, b"invalid-request")
INCOMPLETE = (ERROR, 11, b"mappings-incomplete")
OK = (READY, 0, b"")


def direct(machines: Any, count: int, *, aggregate: bool = True, **knobs: Any) -> Any:
    root = machines.root / "export"
    (root / "src" / "deep").mkdir(parents=True, exist_ok=True)
    (root / "file").write_text("x")
    os.mkfifo(root / "fifo")
    (root / "link").symlink_to("src")
    announced = f"nvx_maps={count} " if count else ""
    config = machines.config(f"hostname=box {announced}{HOST} virtfs_dir=/run/nvx/hostfs/root virtfs_tag=microvm")
    config.aggregate = aggregate
    config.shares = [Share("0" if aggregate else None, str(root), readonly=False)]
    if aggregate:
        config.shares.append(Share("1", str(root / "file"), readonly=True))
    return machines.start(config, **knobs)


def applied(vm: Any) -> list[tuple[object, object, object, object]]:
    return [(event["index"], event["source"], event["target"], event["readOnly"]) for event in vm.witness.of("map")]


def test_mappings_are_applied_in_their_order(machines: Any) -> None:
    vm = direct(machines, 3)
    host = vm.host().attach()
    assert host.call(EXEC, exec_payload("/bin/true")) == INCOMPLETE
    assert host.call(EXEC, b"not even a payload") == INCOMPLETE
    assert host.call(MAPS, maps_payload(0, ("0", "/work", False), ("0/src", "/src", True))) == OK
    assert host.call(EXEC, exec_payload("/bin/true")) == INCOMPLETE
    assert host.call(MAPS, maps_payload(2, ("1", "/file", True))) == OK
    assert host.run("/bin/true").category == "exit"
    assert applied(vm) == [(0, "0", "/work", False), (1, "0/src", "/src", True), (2, "1", "/file", True)]


def test_the_example_of_the_contract(machines: Any) -> None:
    example = "0000000002000000" + "00000100050030" + "2f776f726b" + "010005000400312f7372632f737263"
    assert maps_payload(0, ("0", "/work", False), ("1/src", "/src", True)).hex() == example
    host = direct(machines, 2).host().attach()
    assert host.call(MAPS, bytes.fromhex(example)) == (ERROR, 20, b"mapping-failed")  # child 1 is a file here


def test_eight_hundred_mappings_over_several_records(machines: Any) -> None:
    vm = direct(machines, 800)
    host = vm.host().attach()
    for first in range(0, 800, 300):
        entries = [("0/src", f"/target/{index}", True) for index in range(first, min(800, first + 300))]
        assert host.call(MAPS, maps_payload(first, *entries)) == OK
    assert [index for index, *_ in applied(vm)] == list(range(800))
    assert host.run("/bin/true").category == "exit"


ONE = maps_payload(0, ("0", "/w", False))
WRONG = {
    "nothing": b"",
    "no entries": struct.pack("<II", 0, 0),
    "fewer than said": struct.pack("<II", 0, 2) + ONE[8:],
    "more than said": ONE + b"x",
    "another flag": struct.pack("<II", 0, 1) + struct.pack("<HHH", 2, 1, 2) + b"0/w",
    "not the next": maps_payload(1, ("0", "/w", False)),
    "more than announced": maps_payload(0, *[("0", f"/w{n}", False) for n in range(4)]),
    "absolute source": maps_payload(0, ("/0", "/w", False)),
    "dot as a source": maps_payload(0, (".", "/w", False)),
    "dots in a source": maps_payload(0, ("0/../1", "/w", False)),
    "empty part of a source": maps_payload(0, ("0//src", "/w", False)),
    "source that ends in a slash": maps_payload(0, ("0/", "/w", False)),
    "empty source": maps_payload(0, ("", "/w", False)),
    "relative target": maps_payload(0, ("0", "w", False)),
    "root as a target": maps_payload(0, ("0", "/", False)),
    "dots in a target": maps_payload(0, ("0", "/w/..", False)),
    "empty part of a target": maps_payload(0, ("0", "/w//x", False)),
    "empty target": maps_payload(0, ("0", "", False)),
    "NUL": maps_payload(0, ("0", "/w\0", False)),
    "long target": maps_payload(0, ("0", "/" + "w" * 4095, False)),
    "second of two": maps_payload(0, ("0", "/w", False), ("0", "x", False)),
}


@pytest.mark.parametrize("payload", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_request_mounts_nothing(machines: Any, payload: bytes) -> None:
    vm = direct(machines, 3)
    host = vm.host().attach()
    assert host.call(MAPS, payload) == INVALID
    assert applied(vm) == []
    assert host.call(MAPS, ONE) == OK


def test_a_target_of_4095_bytes_is_allowed(machines: Any) -> None:
    assert direct(machines, 1).host().attach().call(MAPS, maps_payload(0, ("0", "/" + "w" * 4094, False))) == OK


@pytest.mark.parametrize(
    ("source", "status"),
    [("2", 2), ("0/missing", 2), ("0/file/x", 20), ("0/fifo", 22), ("0/link", 40), ("1/x", 20)],
)
def test_a_mount_that_fails_fails_for_good(machines: Any, source: str, status: int) -> None:
    vm = direct(machines, 3)
    host = vm.host().attach()
    request = maps_payload(0, ("0", "/a", False), (source, "/b", False), ("0", "/c", False))
    assert host.call(MAPS, request) == (ERROR, status, b"mapping-failed")
    assert len(applied(vm)) == 1
    assert host.call(MAPS, maps_payload(1, ("0", "/b", False))) == INVALID
    assert host.call(EXEC, exec_payload("/bin/true")) == INCOMPLETE
    assert host.call(PING) == OK


@pytest.mark.parametrize(("knobs", "count"), [({"refuse_maps": 2}, 1), ({"refuse_mapping": 3}, 2)])
def test_the_harness_chooses_what_is_refused(machines: Any, knobs: dict[str, int], count: int) -> None:
    vm = direct(machines, 3, **knobs)
    host = vm.host().attach()
    assert host.call(MAPS, maps_payload(0, ("0", "/a", False))) == OK
    answer = host.call(MAPS, maps_payload(1, ("0", "/b", False), ("0", "/c", False)))
    assert answer == (ERROR, 13, b"mapping-failed")
    assert len(applied(vm)) == count


def test_a_guest_without_announced_mappings_takes_none(machines: Any) -> None:
    host = direct(machines, 0).host().attach()
    assert host.call(MAPS, ONE) == INVALID
    assert host.run("/bin/true").category == "exit"


def test_a_single_share_is_its_own_root(machines: Any) -> None:
    vm = direct(machines, 1, aggregate=False)
    assert vm.host().attach().call(MAPS, maps_payload(0, ("src/deep", "/w", False))) == OK


@pytest.mark.parametrize(("host", "path"), [("/", "/etc"), ("/", "/"), ("C:/", "C:/a"), ("C:/", "C:/")])
def test_a_share_of_a_whole_tree_hides_nothing_by_itself(host: str, path: str) -> None:
    assert not mappings._hidden(Share("0", host, readonly=True), path)


def test_a_hidden_path_isnt_there_but_an_allowed_one_below_it_is(machines: Any) -> None:
    root = machines.root / "export"
    host = hidden(machines, denied=[str(root / "src")], allowed=[str(root / "src" / "deep")])
    assert host.call(MAPS, maps_payload(0, ("0/src/deep", "/w", False))) == OK
    assert host.call(MAPS, maps_payload(1, ("0/src/other", "/x", False))) == (ERROR, 2, b"mapping-failed")


def hidden(machines: Any, *, denied: list[str], allowed: list[str]) -> Host:
    root = machines.root / "export"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "other").mkdir()
    config = machines.config(f"hostname=box nvx_maps=2 {HOST} virtfs_dir=/run/nvx/hostfs/root")
    config.aggregate = True
    share = Share("0", str(root), readonly=False)
    share.denied, share.allowed = denied, allowed
    config.shares = [share]
    attached: Host = machines.start(config).host().attach()
    return attached
