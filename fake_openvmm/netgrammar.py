"""Value grammars of the network options (contract openvmm 1.5). Imported only when one of them is given."""

from __future__ import annotations

import socket

from fake_openvmm.grammar import BadValue, unsigned


class Net:
    """`--net IPv4/PREFIX`: the guest's address and everything that is derived from it.

    Attributes:
        address, gateway, mask: IPv4 addresses as numbers.
        prefix: length of the IPv4 prefix.
    """

    __slots__ = ("address", "gateway", "mask", "prefix")

    def __init__(self, address: int, prefix: int) -> None:
        """Derive the mask and the gateway, which is the network's first address."""
        self.address = address
        self.prefix = prefix
        self.mask = (0xFFFFFFFF << (32 - prefix)) & 0xFFFFFFFF
        self.gateway = (address & self.mask) + 1

    def tokens(self, *, dns: bool) -> str:
        """Give the guest's bootstrap tokens (contract openvmm 2.2, step 8)."""
        server = f" virtnet_dns={dotted(self.gateway)}" if dns else ""
        return (
            f"virtnet_ip={dotted(self.address)} virtnet_mask={dotted(self.mask)} virtnet_gw={dotted(self.gateway)}"
            f"{server} virtnet_ip6={embedded(self.address)}/{96 + self.prefix} virtnet_gw6={embedded(self.gateway)}"
        )


class Prefix:
    """An IPv4 or IPv6 prefix; the host bits are dropped."""

    __slots__ = ("bits", "length", "network")

    def __init__(self, address: int, length: int, bits: int) -> None:
        """Hold the network of `address`; `bits` is 32 or 128."""
        self.bits = bits
        self.length = length
        self.network = address >> (bits - length)

    def contains(self, address: int) -> bool:
        """Whether an IPv4 address belongs to this prefix."""
        return self.bits == IPV4_BITS and address >> (self.bits - self.length) == self.network


IPV4_BITS = 32
IPV6_BITS = 128


def dotted(address: int) -> str:
    """Write an IPv4 address."""
    return ".".join(str(byte) for byte in address.to_bytes(4, "big"))


def embedded(address: int) -> str:
    """Write the IPv6 address whose low 32 bits are an IPv4 address below `fd00::`, zeros compressed."""
    high, low = address >> 16, address & 0xFFFF
    if high:
        return f"fd00::{high:x}:{low:x}"
    return f"fd00::{low:x}" if low else "fd00::"


def net(text: str) -> Net:
    """Read `IPv4/PREFIX`; the address must be a host of its network other than the gateway."""
    address, slash, prefix = text.partition("/")
    if not slash:
        raise BadValue("invalid microVM network: expected <IPv4>/<prefix>, for example 10.0.0.2/24")
    found_address, length = _ipv4(address), unsigned(prefix, 8)
    if not 1 <= length <= 30:  # noqa: PLR2004 - the range of the contract
        raise BadValue(f"IPv4 prefix /{length} is outside the supported range /1 through /30")
    found = Net(found_address, length)
    network = found.gateway - 1
    taken = {network: "network address", network | ~found.mask & 0xFFFFFFFF: "broadcast address"}
    taken[found.gateway] = "derived gateway"
    if found_address in taken:
        raise BadValue(f"guest IPv4 address {address} is the subnet's {taken[found_address]}")
    return found


def prefix4(text: str) -> Prefix:
    """Read an IPv4 address or CIDR of the legacy host lists."""
    address, slash, length = text.partition("/")
    return _prefix(_ipv4(address), length if slash else "32", IPV4_BITS)


def rule(text: str) -> Prefix:
    """Read `CIDR[:tcp[:P[-P]]|:udp[:P[-P]]|:icmp]`; an IPv6 destination may hold colons of its own."""
    destination, transport, ports = _selectors(text)
    if transport and transport not in ("tcp", "udp", "icmp"):
        raise BadValue(f"invalid egress transport '{transport}'; expected tcp, udp, or icmp")
    if ports is not None:
        if transport == "icmp":
            raise BadValue("ICMP egress rules do not take a port")
        first, dash, last = ports.partition("-")
        low = _port(first)
        if dash and _port(last) < low:
            raise BadValue(f"egress port range '{ports}' runs backwards")
    if ":" not in destination:
        return prefix4(destination)
    address, slash, length = destination.partition("/")
    try:
        number = int.from_bytes(socket.inet_pton(socket.AF_INET6, address), "big")
    except OSError:
        raise BadValue(f"invalid IPv6 address '{address}'") from None
    return _prefix(number, length if slash else "128", IPV6_BITS)


class Endpoint:
    """`IPv4:PORT` of `--network-proxy` and `--allow-endpoint`."""

    __slots__ = ("address", "port")

    def __init__(self, address: int, port: int) -> None:
        """Hold both."""
        self.address = address
        self.port = port


def endpoint(text: str) -> Endpoint:
    """Read `IPv4:PORT`."""
    address, colon, port = text.rpartition(":")
    if not colon:
        raise BadValue("expected <IPv4>:<TCP-port>")
    return Endpoint(_ipv4(address), _port(port))


class Forward:
    """`tcp|udp:HOST:GUEST` of `--host-loopback-forward`."""

    __slots__ = ("guest", "host", "protocol")

    def __init__(self, protocol: str, host: int, guest: int) -> None:
        """Hold the protocol and both ports."""
        self.protocol = protocol
        self.host = host
        self.guest = guest


def forward(text: str) -> Forward:
    """Read one port forward."""
    fields = text.split(":")
    if len(fields) != 3:  # noqa: PLR2004 - protocol and two ports
        raise BadValue("expected <tcp|udp>:<HOST-PORT>:<GUEST-PORT>")
    if fields[0] not in ("tcp", "udp"):
        raise BadValue(f"invalid loopback-forward protocol '{fields[0]}'")
    return Forward(fields[0], _port(fields[1]), _port(fields[2]))


def _selectors(text: str) -> tuple[str, str, str | None]:
    """Split a rule into destination, transport ("" if none) and ports, from the right: IPv6 has colons too."""
    fields = text.split(":")
    for index in range(1, len(fields)):
        selectors = fields[index:]
        if selectors[0][:1].isalpha() and not _hexadecimal(selectors[0]):
            if len(selectors) > 2:  # noqa: PLR2004 - transport and ports
                raise BadValue("expected <CIDR>, <CIDR>:<tcp|udp|icmp> or <CIDR>:<tcp|udp>:<PORT[-PORT]>")
            return ":".join(fields[:index]), selectors[0], selectors[1] if len(selectors) > 1 else None
    if "." in fields[0] and len(fields) > 1:
        raise BadValue(f"invalid egress transport '{fields[1]}'; expected tcp, udp, or icmp")
    return text, "", None


def _hexadecimal(text: str) -> bool:
    group = text.partition("/")[0]
    return 0 < len(group) <= 4 and all(char in "0123456789abcdefABCDEF" for char in group)  # noqa: PLR2004 - one group


def _port(text: str) -> int:
    if (port := unsigned(text, 16)) == 0:
        raise BadValue("a port must be nonzero")
    return port


def _ipv4(text: str) -> int:
    try:
        return int.from_bytes(socket.inet_pton(socket.AF_INET, text), "big")
    except (OSError, UnicodeEncodeError):
        raise BadValue(f"invalid IPv4 address '{text}'") from None


def _prefix(address: int, length: str, bits: int) -> Prefix:
    if (number := unsigned(length, 8)) > bits:
        raise BadValue(f"prefix /{number} is outside the supported range /0 through /{bits}")
    return Prefix(address, number, bits)
