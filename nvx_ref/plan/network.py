"""Network policy, and its one lowering to OpenVMM's options (contract openvmm 1.5).

A caller states a :class:`NetworkPolicy`; :func:`plan_network` lowers it at provision to a :class:`NetworkPlan`, which
is kept: sorted, without repeats, in the one text form of each rule. A policy file isn't read again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from nvx_ref.errors import Malformed, Refused
from nvx_ref.plan.rules import MAX_RULES, Protocol, Rule, check_rules, guest_network, is_port, lower_rules

MAX_POLICY_BYTES = 1 << 20
MAX_FORWARDS = 64
DEFAULT_ADDRESS = "10.0.0.2/24"

Port = Annotated[int, Meta(ge=1, le=65_535)]


class NetworkMode(StrEnum):
    """What happens to what no rule names.

    ``allow`` and ``deny`` are the egress default; ``proxy-only`` lets the guest reach one TCP port of the gateway,
    where the caller's proxy listens, and nothing else.
    """

    ALLOW = "allow"
    DENY = "deny"
    PROXY_ONLY = "proxy-only"


class Forward(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One port of the host's loopback that the guest may reach.

    Args:
        protocol: ``tcp`` or ``udp``.
        host: The host's port.
        guest: The port that the guest uses.
    """

    protocol: Protocol
    host: Port
    guest: Port


class NetworkPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """What a caller wants of the network. Ingress is always denied, and so is the host's loopback but for forwards.

    Args:
        mode: The default.
        address: The guest's IPv4 address and prefix; the gateway is the network's first address.
        allow: What may pass.
        deny: What may not; it wins.
        forwards: Ports of the host's loopback; one per protocol and host port.
        proxy: The gateway's TCP port where a proxy listens; needed for ``proxy-only``.
    """

    mode: NetworkMode
    address: str = DEFAULT_ADDRESS
    allow: tuple[Rule, ...] = ()
    deny: tuple[Rule, ...] = ()
    forwards: tuple[Forward, ...] = ()
    proxy: Port | None = None


class NetworkPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """A lowered policy, as a plan keeps it.

    Args:
        address: The guest's address and prefix.
        egress: ``allow`` or ``deny``.
        allow: Rules in their text form, sorted, at most 256.
        deny: The same.
        forwards: ``tcp|udp:HOST:GUEST``, at most 64.
        proxy: ``GATEWAY:PORT``, or None.
    """

    address: str
    egress: NetworkMode
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    forwards: tuple[str, ...] = ()
    proxy: str | None = None

    def __post_init__(self) -> None:
        network = guest_network(self.address)
        if self.egress is NetworkMode.PROXY_ONLY:
            raise Refused("a plan's egress is allow or deny", subject="network", detail="network")
        for name, rules in (("allow", self.allow), ("deny", self.deny)):
            check_rules(rules, what=f"{name} rules")
        if list(self.forwards) != sorted(set(self.forwards)) or len(self.forwards) > MAX_FORWARDS:
            raise Refused("forwards are sorted, unique and at most 64", subject="forwards", detail="network")
        for text in self.forwards:
            parse_forward(text)
        if self.proxy is not None:
            gateway, _, port = self.proxy.rpartition(":")
            if gateway != network.gateway or not is_port(port):
                raise Refused(
                    f"{self.proxy!r} isn't a port of the gateway {network.gateway}", subject="proxy", detail="proxy"
                )


def parse_forward(text: str) -> Forward:
    """Read ``tcp|udp:HOST:GUEST``, the value of ``--host-loopback-forward``.

    Raises:
        Malformed: It has another form.
    """
    fields = text.split(":")
    if len(fields) != 3 or fields[0] not in {"tcp", "udp"} or not all(is_port(port) for port in fields[1:]):  # noqa: PLR2004
        raise Malformed(f"{text!r} isn't tcp|udp:HOST:GUEST", subject="forwards", detail="forwards")
    return Forward(Protocol(fields[0]), int(fields[1]), int(fields[2]))


def parse_proxy(text: str, address: str) -> int:
    """Read ``GATEWAY:PORT``, the value of ``--network-proxy``, and return the port.

    Args:
        text: The value.
        address: The guest's address and prefix, whose gateway it must name.

    Raises:
        Malformed: It has another form, or the address isn't one.
        Refused: It names another host (``detail="proxy"``).
    """
    network = guest_network(address)
    host, _, port = text.rpartition(":")
    if not host or not is_port(port):
        raise Malformed(f"{text!r} isn't IPV4:PORT", subject="proxy", detail="proxy")
    if host != network.gateway:
        raise Refused(f"a proxy listens at the gateway, {network.gateway}", subject="proxy", detail="proxy")
    return int(port)


def plan_network(policy: NetworkPolicy | None) -> NetworkPlan | None:
    """Lower a policy. None means no network device: no policy, or one that lets nothing pass.

    Args:
        policy: What the caller wants, already authorised.

    Raises:
        Malformed: An address, a rule or a port isn't one.
        Refused: Over 256 rules of a kind after expansion, over 64 forwards, or settings that contradict each other.
    """
    if policy is None:
        return None
    network = guest_network(policy.address)
    # Before any way out: what is no rule is refused, whether it would matter or not.
    allow, deny = lower_rules(policy.allow, what="allow rules"), lower_rules(policy.deny, what="deny rules")
    if policy.mode is NetworkMode.PROXY_ONLY:
        if policy.proxy is None or policy.allow or policy.deny or policy.forwards:
            raise Refused(
                "proxy-only takes a proxy port, and neither rules nor forwards", subject="network", detail="proxy-only"
            )
    elif policy.mode is NetworkMode.DENY and not policy.allow and not policy.forwards:
        if policy.proxy is not None:
            raise Refused("a proxy alone is the mode proxy-only", subject="network", detail="proxy-only")
        return None
    hosts = [(forward.protocol, forward.host) for forward in policy.forwards]
    if len(set(hosts)) != len(hosts) or len(hosts) > MAX_FORWARDS:
        raise Refused(
            f"at most {MAX_FORWARDS} forwards, one per protocol and host port", subject="forwards", detail="forwards"
        )
    return NetworkPlan(
        address=policy.address,
        egress=NetworkMode.ALLOW if policy.mode is NetworkMode.ALLOW else NetworkMode.DENY,
        allow=allow,
        deny=deny,
        forwards=tuple(sorted(f"{one.protocol.value}:{one.host}:{one.guest}" for one in policy.forwards)),
        proxy=f"{network.gateway}:{policy.proxy}" if policy.proxy is not None else None,
    )


def network_options(plan: NetworkPlan) -> list[str]:
    """Return OpenVMM's options for a lowered policy, in the launcher's order."""
    argv = ["--net", plan.address, "--network-profile", "portable", "--network-egress", plan.egress.value]
    argv += ["--network-ingress", "deny", "--host-loopback", "allow" if plan.forwards else "deny"]
    for option, values in (
        ("--network-egress-allow", plan.allow),
        ("--network-egress-deny", plan.deny),
        ("--host-loopback-forward", plan.forwards),
    ):
        for value in values:
            argv += [option, value]
    return argv if plan.proxy is None else [*argv, "--network-proxy", plan.proxy]


def read_policy(raw: bytes, *, subject: str) -> NetworkPolicy:
    """Read a policy file: one JSON object of the fields of :class:`NetworkPolicy`.

    Args:
        raw: At most 1 MiB.
        subject: The file's name, for the errors.

    Raises:
        Malformed: It is too long, isn't JSON, or has a repeated, unknown or missing property, or a value of another
            type.
    """
    import json  # noqa: PLC0415 - only a policy file needs it: msgspec takes the last of repeated properties

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a property comes twice")
        return found

    if len(raw) > MAX_POLICY_BYTES:
        raise Malformed(f"{len(raw)} bytes are over {MAX_POLICY_BYTES}", subject=subject, detail="policy")
    try:
        return msgspec.convert(json.loads(raw, object_pairs_hook=once), type=NetworkPolicy)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(f"not a network policy: {error}", subject=subject, detail="policy") from error


__all__ = [
    "MAX_FORWARDS",
    "MAX_RULES",
    "Forward",
    "NetworkMode",
    "NetworkPlan",
    "NetworkPolicy",
    "network_options",
    "parse_forward",
    "parse_proxy",
    "plan_network",
    "read_policy",
]
