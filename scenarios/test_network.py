"""What a guest may reach: each policy lowered to the VMM's options, and what the VMM reports of it."""

from __future__ import annotations

import json

import pytest

from harness.goldens import Goldens
from harness.sandbox import RAMFS, Sandbox
from harness.sut.protocol import mapping
from harness.world import World
from scenarios.boots import options_as_lines

pytestmark = pytest.mark.spec("card.3", "622.acc.21")

MOST = 256
Policy = dict[str, object]

POLICIES: dict[str, Policy | None] = {
    "none": None,
    "deny-all": {"mode": "deny"},
    "allow-all": {"mode": "allow"},
    "allow-rules": {
        "mode": "deny",
        "allow": [
            {"cidr": "192.0.2.0/24", "protocol": "tcp", "ports": "443"},
            {"cidr": "2001:db8::/32", "protocol": "udp", "ports": "53-54"},
            {"cidr": "192.0.2.0/24", "protocol": "tcp", "ports": "443"},
            {"cidr": "10.1.0.0/16", "except": ["10.1.128.0/17"]},
        ],
    },
    "deny-over-allow": {
        "mode": "deny",
        "allow": [{"cidr": "192.0.2.0/24"}],
        "deny": [{"cidr": "192.0.2.7/32", "protocol": "icmp"}],
    },
    "forwards": {
        "mode": "deny",
        # Ports of the host that take no privilege and that no system gives away by itself.
        "forwards": [
            {"protocol": "udp", "host": 25353, "guest": 5353},
            {"protocol": "tcp", "host": 28080, "guest": 80},
        ],
    },
    "proxy-only": {"mode": "proxy-only", "proxy": 3128, "address": "10.9.8.2/24"},
    "most-rules": {"mode": "deny", "allow": [{"cidr": f"10.{one}.0.0/16"} for one in range(MOST)]},
}


@pytest.mark.spec("622.scope4.a", "622.scope4.b", "622.acc.12", "622.acc.13")
def test_each_policy_is_lowered_to_options_and_reported(world: World, goldens: Goldens) -> None:
    program = world.orchestrator()
    for name, policy in POLICIES.items():
        box = Sandbox(world, name, upper=RAMFS)
        box.extra["network"] = policy
        box.provision(program)
        box.succeed(program, "start")
        vm = world.runs.last("start")
        lines = [line for line in options_as_lines(vm.argv()) if line.startswith(("--net", "--host-loopback"))]
        text = world.vmm.guest_facts(vm, box.look(program)).command_line
        box.succeed(program, "stop")
        world.processes.none("stop", world.soon())
        report = mapping(json.loads(box.read("outcome.json"))["network_policy"])
        box.succeed(program, "deprovision")
        if name == "most-rules":
            rules = [line for line in lines if line.startswith("--network-egress-allow")]
            world.expect("rules", expected=(MOST, MOST), found=(len(rules), report["allow_rule_count"]))
            continue
        seen = world.saw("command line", text)
        lines += [word for word in (text or "").split(" ") if word.startswith("virtnet_")]
        lines += [f"report {key}: {value}" for key, value in report.items()]
        goldens.check(f"network/{name}.txt", lines, unseen="" if seen else "virtnet_")


def _rule(cidr: str, **more: object) -> Policy:
    return {"mode": "deny", "allow": [{"cidr": cidr, **more}]}


REFUSED: dict[str, tuple[Policy, str, str]] = {
    "a rule too many": (
        {"mode": "deny", "allow": [{"cidr": f"10.0.{n // 256}.{n % 256}"} for n in range(MOST + 1)]},
        "Refused",
        "rules",
    ),
    "one too many after expansion": (
        _rule("10.0.0.0/8", **{"except": [f"10.{n}.0.0/32" for n in range(20)]}),
        "Refused",
        "rules",
    ),
    "no network": (_rule("10.0.0.1/8"), "Malformed", "cidr"),
    "an address that isn't one": ({"mode": "deny", "deny": [{"cidr": "10.0.0.256"}]}, "Malformed", "cidr"),
    "port 0": (_rule("10.0.0.1", protocol="tcp", ports="0"), "Malformed", "ports"),
    "a range backwards": (_rule("10.0.0.1", protocol="udp", ports="9-8"), "Malformed", "ports"),
    "ports of icmp": (_rule("10.0.0.1", protocol="icmp", ports="8"), "Malformed", "ports"),
    "the gateway's address": ({"mode": "allow", "address": "10.0.0.1/24"}, "Malformed", "net"),
    "prefix 31": ({"mode": "allow", "address": "10.0.0.2/31"}, "Malformed", "net"),
    "proxy-only without a proxy": ({"mode": "proxy-only"}, "Refused", "proxy-only"),
    "proxy-only with rules": ({**_rule("10.0.0.1"), "mode": "proxy-only", "proxy": 1}, "Refused", "proxy-only"),
    "a host port twice": (
        {"mode": "deny", "forwards": [{"protocol": "tcp", "host": 1, "guest": n} for n in (1, 2)]},
        "Refused",
        "forwards",
    ),
}


@pytest.mark.spec("622.acc.12", "622.acc.13")
def test_a_policy_that_is_none_is_refused_before_anything_is_made(world: World) -> None:
    program = world.orchestrator()
    for what, (policy, code, detail) in REFUSED.items():
        box = Sandbox(world, upper=RAMFS)
        box.extra["network"] = policy
        answer = box.fail(program, "provision", code, box.request())
        world.expect(what, expected=detail, found=answer.details.get("detail"))
        world.expect(f"{what}: the state directory", expected=[], found=box.names())
