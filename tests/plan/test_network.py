"""Network policy: one lowering, sorted and without repeats, with deny over allow and proxy-only as a mode."""

from __future__ import annotations

import ipaddress
import json
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvx_ref.errors import Malformed, NvxError, Refused
from nvx_ref.plan import (
    ColdPlan,
    Forward,
    NetworkMode,
    NetworkPlan,
    NetworkPolicy,
    Protocol,
    Rule,
    decode_plan,
    encode_plan,
    parse_forward,
    parse_rule,
    plan_network,
    read_policy,
)
from nvx_ref.plan.argv import Endpoints, Files, render
from nvx_ref.plan.network import network_options

ALLOW, DENY, PROXY_ONLY = NetworkMode.ALLOW, NetworkMode.DENY, NetworkMode.PROXY_ONLY


def lowered(policy: NetworkPolicy) -> NetworkPlan:
    plan = plan_network(policy)
    assert plan is not None
    return plan


@pytest.mark.spec("622.acc.12")
@pytest.mark.parametrize("policy", [None, NetworkPolicy(mode=DENY), NetworkPolicy(mode=DENY, deny=(Rule("::/0"),))])
def test_no_policy_and_one_that_lets_nothing_pass_have_no_device(policy: NetworkPolicy | None) -> None:
    assert plan_network(policy) is None


@pytest.mark.spec("622.acc.13")
@pytest.mark.spec("622.scope4.b")
def test_proxy_only_is_one_hole_and_nothing_else() -> None:
    plan = lowered(NetworkPolicy(mode=PROXY_ONLY, proxy=3128, address="10.1.2.77/26"))
    assert network_options(plan) == [
        *("--net", "10.1.2.77/26", "--network-profile", "portable"),
        *("--network-egress", "deny", "--network-ingress", "deny", "--host-loopback", "deny"),
        *("--network-proxy", "10.1.2.65:3128"),
    ]


@pytest.mark.parametrize(
    "policy",
    [
        NetworkPolicy(mode=PROXY_ONLY),
        NetworkPolicy(mode=PROXY_ONLY, proxy=1, allow=(Rule("1.2.3.4"),)),
        NetworkPolicy(mode=PROXY_ONLY, proxy=1, deny=(Rule("1.2.3.4"),)),
        NetworkPolicy(mode=PROXY_ONLY, proxy=1, forwards=(Forward(Protocol.TCP, 1, 1),)),
        NetworkPolicy(mode=DENY, proxy=1),
    ],
)
def test_contradictions_are_refused(policy: NetworkPolicy) -> None:
    with pytest.raises(Refused) as caught:
        plan_network(policy)
    assert caught.value.detail == "proxy-only"


def test_options_come_in_the_launchers_order() -> None:
    plan = lowered(
        NetworkPolicy(
            mode=ALLOW,
            allow=(Rule("10.0.0.0/8", Protocol.TCP, "443"), Rule("10.0.0.0/8", Protocol.TCP, "80-90"), Rule("1.2.3.4")),
            deny=(Rule("fd00::/8", Protocol.UDP, "53"), Rule("10.9.0.0/16", Protocol.ICMP)),
            forwards=(Forward(Protocol.UDP, 53, 5353), Forward(Protocol.TCP, 80, 8080)),
            proxy=3128,
        )
    )
    assert network_options(plan) == [
        *("--net", "10.0.0.2/24", "--network-profile", "portable"),
        *("--network-egress", "allow", "--network-ingress", "deny", "--host-loopback", "allow"),
        *("--network-egress-allow", "1.2.3.4/32"),
        *("--network-egress-allow", "10.0.0.0/8:tcp:80-90", "--network-egress-allow", "10.0.0.0/8:tcp:443"),
        *("--network-egress-deny", "10.9.0.0/16:icmp", "--network-egress-deny", "fd00::/8:udp:53"),
        *("--host-loopback-forward", "tcp:80:8080", "--host-loopback-forward", "udp:53:5353"),
        *("--network-proxy", "10.0.0.1:3128"),
    ]


@pytest.mark.spec("622.scope1.d")
def test_the_network_is_last_in_the_command(plan: ColdPlan) -> None:
    networked = msgspec.structs.replace(plan, network=plan_network(NetworkPolicy(mode=ALLOW)))
    argv = render(["vmm"], networked, Files(kernel="k", initramfs="i"), Endpoints(control="/c", report="/r"))
    assert argv[argv.index("--microvm-report") + 2 :][:2] == ["--net", "10.0.0.2/24"]
    assert decode_plan(encode_plan(networked)) == networked


# Limits and forms


@pytest.mark.parametrize("side", ["allow", "deny"])
def test_256_rules_pass_and_257_don_t(side: str) -> None:
    rules = tuple(Rule(f"10.0.{n}.0/24") for n in range(256))
    policy = NetworkPolicy(mode=ALLOW, **{side: (*rules, *rules)})
    assert len(getattr(lowered(policy), side)) == 256
    with pytest.raises(Refused) as caught:
        plan_network(NetworkPolicy(mode=ALLOW, **{side: (*rules, Rule("11.0.0.0/8"))}))
    assert caught.value.detail == "rules"


def test_64_forwards_pass_and_65_or_a_repeated_port_don_t() -> None:
    forwards = tuple(Forward(Protocol.TCP, port, port) for port in range(1, 65))
    assert len(lowered(NetworkPolicy(mode=DENY, forwards=forwards)).forwards) == 64
    for more in (Forward(Protocol.TCP, 65, 65), Forward(Protocol.TCP, 1, 2)):
        with pytest.raises(Refused):
            plan_network(NetworkPolicy(mode=DENY, forwards=(*forwards, more)))


@pytest.mark.parametrize(
    "rule",
    [
        Rule(""),
        Rule("10.0.0.1/8"),
        Rule("10.0.0.0/33"),
        Rule("10.0.0.0/08"),
        Rule("10.0.0.0/255.0.0.0"),
        Rule("10.0.0"),
        Rule("host.example"),
        Rule("fe80::1%eth0"),
        Rule("10.0.0.0/8", None, "80"),
        Rule("10.0.0.0/8", Protocol.ICMP, "80"),
        Rule("10.0.0.0/8", Protocol.TCP, ""),
        Rule("10.0.0.0/8", Protocol.TCP, "0"),
        Rule("10.0.0.0/8", Protocol.TCP, "65536"),
        Rule("10.0.0.0/8", Protocol.TCP, "080"),
        Rule("10.0.0.0/8", Protocol.TCP, "90-80"),
        Rule("10.0.0.0/8", Protocol.TCP, "80-"),
        Rule("10.0.0.0/8", Protocol.TCP, "1" * 5000),
        Rule("10.0.0.0/8", exceptions=("x",)),
    ],
)
def test_a_rule_that_is_none_is_malformed(rule: Rule) -> None:
    with pytest.raises(Malformed):
        plan_network(NetworkPolicy(mode=ALLOW, deny=(rule,)))


@pytest.mark.parametrize(
    "address",
    [
        "",
        "10.0.0.2",
        "10.0.0.2/0",
        "10.0.0.2/31",
        "10.0.0.0/24",
        "10.0.0.1/24",
        "10.0.0.255/24",
        "10.0.0.2/024",
        "::1/64",
    ],
)
def test_a_guest_address_that_is_none_is_malformed(address: str) -> None:
    with pytest.raises(Malformed):
        plan_network(NetworkPolicy(mode=ALLOW, address=address))


NETWORKS = st.tuples(st.integers(0, 2**32 - 1), st.integers(4, 32)).map(
    lambda pair: ipaddress.ip_network((pair[0] >> 8 << 8 if pair[1] <= 24 else pair[0], pair[1]), strict=False)
)


@settings(max_examples=50, deadline=None)
@given(network=NETWORKS, holes=st.lists(NETWORKS, max_size=3), probes=st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_exceptions_leave_exactly_the_rest(
    network: ipaddress.IPv4Network, holes: list[ipaddress.IPv4Network], probes: list[int]
) -> None:
    policy = NetworkPolicy(mode=ALLOW, allow=(Rule(str(network), exceptions=tuple(map(str, holes))),))
    left = [ipaddress.ip_network(text) for text in lowered(policy).allow]
    edges = [address for one in (network, *holes) for address in (one[0], one[-1])]
    for address in (*edges, *map(ipaddress.IPv4Address, probes)):
        expected = address in network and not any(address in hole for hole in holes)
        assert any(address in one for one in left) is expected


def test_rules_and_forwards_are_read_from_their_options() -> None:
    assert parse_rule("fd00::/8:tcp:80-90") == Rule("fd00::/8", Protocol.TCP, "80-90")
    assert parse_rule("1.2.3.4") == Rule("1.2.3.4")
    assert parse_forward("udp:53:5353") == Forward(Protocol.UDP, 53, 5353)
    for text in ("", "tcp:1", "icmp:1:1", "tcp:0:1", "tcp:1:2:3"):
        with pytest.raises(Malformed):
            parse_forward(text)


# Kept plans and policy files


@pytest.mark.parametrize(
    "change",
    [
        {"egress": "proxy-only"},
        {"address": "10.0.0.0/24"},
        {"allow": ["10.0.0.0/8", "1.0.0.0/8"]},
        {"allow": ["1.0.0.0/8", "1.0.0.0/8"]},
        {"allow": ["1.2.3.4"]},
        {"allow": ["1.0.0.0/8:tcp:80-80"]},
        {"allow": ["1.0.0.0/8:tcp:80:90"]},
        {"allow": [f"10.{n // 256}.{n % 256}.0/24" for n in range(257)]},
        {"forwards": ["tcp:1:1:1"]},
        {"forwards": ["tcp:01:1"]},
        {"forwards": ["udp:1:1", "tcp:1:1"]},
        {"proxy": "10.0.0.9:1"},
        {"proxy": "10.0.0.1:0"},
        {"ingress": "allow"},
    ],
)
def test_a_kept_plan_in_another_form_is_refused(plan: ColdPlan, change: dict[str, object]) -> None:
    tree = json.loads(encode_plan(plan))
    tree["network"] = {"address": "10.0.0.2/24", "egress": "allow", **change}
    with pytest.raises((Malformed, Refused)):
        decode_plan(json.dumps(tree).encode())


def test_a_policy_file_is_read() -> None:
    raw = b'{"mode":"deny","allow":[{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"],"protocol":"tcp","ports":"80"}]}'
    assert read_policy(raw, subject="policy.json").allow == (Rule("10.0.0.0/8", Protocol.TCP, "80", ("10.1.0.0/16",)),)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"mode":"deny","mode":"allow"}',
        b'{"mode":"deny","allow":[{"cidr":"::/0","cidr":"::/1"}]}',
        b'{"mode":"deny","ingress":"allow"}',
        b'{"mode":"deny","proxy":true}',
        b'{"mode":"deny","proxy":0}',
        b"\xff",
        b"[" * 100_000,
        b" " * ((1 << 20) + 1),
    ],
)
def test_a_policy_file_of_another_shape_is_malformed(raw: bytes) -> None:
    with pytest.raises(Malformed, match=r"policy\.json"):
        read_policy(raw, subject="policy.json")


@settings(max_examples=80, deadline=None)
@given(
    st.builds(
        NetworkPolicy,
        mode=st.sampled_from(NetworkMode),
        address=st.text(max_size=12),
        allow=st.lists(st.builds(Rule, st.text(max_size=12), st.none(), st.none() | st.text(max_size=6))).map(tuple),
    )
)
def test_arbitrary_policies_give_typed_errors(policy: NetworkPolicy) -> None:
    with suppress(NvxError):
        plan_network(policy)


@pytest.mark.parametrize("policy", [{"mode": "deny"}, {"mode": "proxy-only", "proxy": 1}])
def test_a_rule_that_is_none_is_refused_where_no_rule_would_matter(policy: dict[str, object]) -> None:
    bad = msgspec.convert({**policy, "deny": [{"cidr": "10.0.0.256"}]}, type=NetworkPolicy)
    with pytest.raises(Malformed, match="isn't a network"):
        plan_network(bad)
