"""Egress rules: CIDR with exceptions, protocol and ports, to the one text form that OpenVMM takes."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from nvx_ref.errors import Malformed, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from ipaddress import IPv4Network, IPv6Network

MAX_RULES = 256
MAX_EXCEPTIONS = 256
MAX_PORT = 65_535
_PREFIXES = range(1, 31)


class Protocol(StrEnum):
    """A transport that a rule can name."""

    TCP = "tcp"
    UDP = "udp"
    ICMP = "icmp"


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """One egress rule.

    Args:
        cidr: An IPv4 or IPv6 network, or one address.
        protocol: One transport, or None for all.
        ports: ``FIRST`` or ``FIRST-LAST`` of TCP or UDP, or None for all.
        exceptions: Networks within ``cidr`` that the rule doesn't name.
    """

    cidr: str
    protocol: Protocol | None = None
    ports: str | None = None
    exceptions: tuple[str, ...] = msgspec.field(default=(), name="except")


class GuestNetwork(msgspec.Struct, frozen=True):
    """The guest's network.

    Args:
        gateway: Its first address.
    """

    gateway: str


def guest_network(text: str) -> GuestNetwork:
    """Check the guest's own address.

    Args:
        text: ``ADDRESS/PREFIX``, prefix 1 to 30.

    Raises:
        Malformed: It isn't that, or it is the network's own, its broadcast or its gateway address.
    """
    import ipaddress  # noqa: PLC0415 - loaded by plans with a network only

    address, _, prefix = text.partition("/")
    try:
        found = ipaddress.IPv4Interface(text)
    except ValueError as error:
        raise Malformed(f"{text!r} isn't an IPv4 address with a prefix", subject="net", detail="net") from error
    network = found.network
    if str(found.ip) != address or str(network.prefixlen) != prefix or network.prefixlen not in _PREFIXES:
        raise Malformed(f"{text!r} isn't an IPv4 address with a prefix of 1 to 30", subject="net", detail="net")
    gateway = network.network_address + 1
    if found.ip in {network.network_address, network.broadcast_address, gateway}:
        raise Malformed(
            f"{address} is the network's own, its broadcast or its gateway address", subject="net", detail="net"
        )
    return GuestNetwork(str(gateway))


def lower_rules(rules: Iterable[Rule], *, what: str) -> tuple[str, ...]:
    """Expand exceptions, sort, and drop repeats.

    Args:
        rules: In any order.
        what: Which list, for the errors.

    Raises:
        Malformed: A network, protocol or port isn't one.
        Refused: Over 256 rules are left.
    """
    found: set[tuple[int, int, int, str, int, int]] = set()
    for rule in rules:
        selector = _selector(rule, what)
        for network in _expand(rule, what):
            found.add((network.version, int(network.network_address), network.prefixlen, *selector))
            if len(found) > MAX_RULES:
                raise Refused(f"over {MAX_RULES} after expansion", subject=what, detail="rules")
    return tuple(_text(*one) for one in sorted(found))


def check_rules(rules: Sequence[str], *, what: str) -> None:
    """Check rules that a plan kept: each in its one form, all sorted and without repeats.

    Raises:
        Malformed: One of them isn't.
        Refused: There are over 256.
    """
    if lower_rules((parse_rule(text) for text in rules), what=what) != tuple(rules):
        raise Malformed("rules aren't in their one form, sorted and without repeats", subject=what, detail="rules")


def parse_rule(text: str) -> Rule:
    """Read ``CIDR[:tcp[:P[-P]]|:udp[:P[-P]]|:icmp]``; an IPv6 network holds colons of its own.

    Raises:
        Malformed: The protocol isn't one; what is left is checked when it is lowered.
    """
    fields = text.split(":")
    for place, field in enumerate(fields[1:], 1):
        if field in {protocol.value for protocol in Protocol}:
            ports = ":".join(fields[place + 1 :]) if place + 1 < len(fields) else None
            return Rule(":".join(fields[:place]), Protocol(field), ports)
    return Rule(text)


def _expand(rule: Rule, what: str) -> list[IPv4Network | IPv6Network]:
    if len(rule.exceptions) > MAX_EXCEPTIONS:
        raise Refused(f"over {MAX_EXCEPTIONS} exceptions", subject=what, detail="rules")
    left = [_network(rule.cidr, what)]
    for text in rule.exceptions:
        hole = _network(text, what)
        remaining: list[IPv4Network | IPv6Network] = []
        for network in left:
            remaining += _without(network, hole)
        left = remaining
        if len(left) > MAX_RULES:
            raise Refused(f"over {MAX_RULES} after expansion", subject=what, detail="rules")
    return left


def _without(network: IPv4Network | IPv6Network, hole: IPv4Network | IPv6Network) -> list[IPv4Network | IPv6Network]:
    if network.version != hole.version or not network.overlaps(hole):
        return [network]
    if hole.prefixlen <= network.prefixlen:
        return []
    parts: list[IPv4Network | IPv6Network] = []
    for half in network.subnets():
        parts += _without(half, hole)
    return parts


def _network(text: str, what: str) -> IPv4Network | IPv6Network:
    import ipaddress  # noqa: PLC0415 - loaded by plans with rules only

    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise Malformed(f"{text!r} isn't a network: {error}", subject=what, detail="cidr") from error
    prefix = text.partition("/")[2]
    if "%" in text or (prefix and prefix != str(network.prefixlen)):
        raise Malformed(f"{text!r} isn't a network with a prefix length", subject=what, detail="cidr")
    return network


def _selector(rule: Rule, what: str) -> tuple[str, int, int]:
    if rule.ports is None:
        return (rule.protocol.value if rule.protocol else "", 0, 0)
    if rule.protocol is None or rule.protocol is Protocol.ICMP:
        raise Malformed("ports need tcp or udp", subject=what, detail="ports")
    first, dash, last = rule.ports.partition("-")
    low, high = _port(first, what), _port(last if dash else first, what)
    if low > high:
        raise Malformed(f"the range {rule.ports!r} runs backwards", subject=what, detail="ports")
    return (rule.protocol.value, low, high)


def _port(text: str, what: str) -> int:
    if not is_port(text):
        raise Malformed(f"{text!r} isn't a port", subject=what, detail="ports")
    return int(text)


def is_port(text: str) -> bool:
    """Tell whether a text is a port in its one decimal form."""
    return (
        text.isascii()
        and text.isdecimal()
        and len(text) <= len(str(MAX_PORT))
        and 1 <= int(text) <= MAX_PORT
        and (text[0] != "0")
    )


def _text(version: int, address: int, prefix: int, protocol: str, low: int, high: int) -> str:
    import ipaddress  # noqa: PLC0415 - loaded by plans with rules only

    kind = ipaddress.IPv4Address if version == 4 else ipaddress.IPv6Address  # noqa: PLR2004
    parts = [f"{kind(address)}/{prefix}"]
    if protocol:
        parts.append(protocol)
    if low:
        parts.append(str(low) if low == high else f"{low}-{high}")
    return ":".join(parts)
