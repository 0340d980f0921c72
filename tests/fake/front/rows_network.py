"""Rules of contract openvmm 1.5: the network."""

from __future__ import annotations

from tests.support.openvmm_rows import Row, refused, unreported, usage

RULES = {
    "1.5 net grammar": "IPv4/PREFIX, prefix 1..30",
    "1.5 net address": "not the network, broadcast or gateway address",
    "1.5 net once": "a second one is a later check",
    "1.5 net and profile": "only together",
    "1.5 profile word": "portable",
    "1.5 IPv6": "fd00:: with the IPv4 address as its low 32 bits, prefix 96 more",
    "1.5 egress words": "allow or deny",
    "1.5 egress with rules": "is required",
    "1.5 ingress": "allow is refused",
    "1.5 rule grammar": "CIDR, IPv4 or IPv6, with tcp, udp (ports) or icmp; ports 1..65535, ranges forwards",
    "1.5 rule count": "at most 256 each",
    "1.5 loopback needs forward": "allow without one, found before the report's destination is used",
    "1.5 forward grammar": "tcp|udp:HOST:GUEST",
    "1.5 forward needs allow": "explicit --host-loopback allow",
    "1.5 forward count": "at most 64, one per protocol and host port",
    "1.5 proxy": "IPv4:PORT, the derived gateway",
    "1.5 legacy grammar": "IPv4 or CIDR; IPv4:PORT",
    "1.5 legacy exclusive": "two of the three are a usage error",
    "1.5 legacy and rules": "don't mix",
    "1.5 legacy and egress": "the first and last exclude allow, the second deny",
    "1.5 net-tap": "always refused",
    "1.5 needs net": "every policy option",
    "2.2 virtnet_dns": "only when the policy lets the guest reach the gateway",
    "2.2 network tokens": "address, mask, gateway, DNS, IPv6",
}

NET = "net=10.0.0.2/24 network-profile=portable"
DNS = "virtnet_gw=10.0.0.1 virtnet_dns=10.0.0.1 virtnet_ip6="
NO_DNS = "virtnet_gw=10.0.0.1 virtnet_ip6="


def many(option: str, count: int, text: str = "10.1.{0}.0/24") -> str:
    return " ".join("+" + option + "=" + text.format(number) for number in range(1, count + 1))


def net(text: str) -> str:
    return f"net={text} network-profile=portable"


ADDRESS = [
    Row("1.5 net grammar", net("10.0.0.2/30"), line="virtnet_mask=255.255.255.252"),
    Row("1.5 net grammar", net("10.0.0.2/1"), line="virtnet_mask=128.0.0.0 virtnet_gw=0.0.0.1"),
    *(
        usage("1.5 net grammar", net(text))
        for text in (
            "10.0.0.2",
            "10.0.0.2/",
            "10.0.0.2/31",
            "10.0.0.2/0",
            "10.0.0.2/33",
            "10.0.0.2/24/8",
            "10.0.0/24",
            "010.0.0.2/24",
            "fd00::2/64",
            "consomme",
            "''",
            "10.0.0.256/24",
        )
    ),
    usage("1.5 net address", net("10.0.0.0/24"), "network address"),
    usage("1.5 net address", net("10.0.0.255/24"), "broadcast address"),
    usage("1.5 net address", net("10.0.0.1/24"), "derived gateway"),
    refused("1.5 net once", f"{NET} +net=10.0.1.2/24", "at most one virtio-net device"),
    usage("1.5 net once", f"{NET} +net=10.0.1.0/24"),
    refused("1.5 net and profile", "net=10.0.0.2/24", "requires --network-profile portable"),
    refused("1.5 net and profile", "network-profile=portable", "requires --net"),
    usage("1.5 profile word", "net=10.0.0.2/24 network-profile=bridged", "[possible values: portable]"),
    Row("1.5 IPv6", NET, line="virtnet_ip6=fd00::a00:2/120 virtnet_gw6=fd00::a00:1"),
    Row("1.5 IPv6", net("0.0.0.2/8"), line="virtnet_ip6=fd00::2/104 virtnet_gw6=fd00::1"),
    Row("1.5 IPv6", net("192.168.0.0/1"), line="virtnet_ip6=fd00::c0a8:0/97 virtnet_gw6=fd00::8000:1"),
    Row(
        "2.2 network tokens",
        NET,
        line="nvx_control_tty=hvc2 virtnet_ip=10.0.0.2 virtnet_mask=255.255.255.0 virtnet_gw=10.0.0.1 "
        "virtnet_dns=10.0.0.1 virtnet_ip6=fd00::a00:2/120 virtnet_gw6=fd00::a00:1",
    ),
    Row(
        "2.2 network tokens",
        NET,
        line="virtio_mmio.device=0x1000@0xd0000000:10 virtio_mmio.device=0x1000@0xd0001000:6",
    ),
]

POLICY = [
    Row("1.5 egress words", f"{NET} network-egress=allow network-ingress=deny host-loopback=deny", line=DNS),
    usage("1.5 egress words", f"{NET} network-egress=none", "[possible values: allow, deny]"),
    usage("1.5 egress words", f"{NET} host-loopback=off"),
    refused("1.5 egress with rules", f"{NET} network-egress-allow=10.1.0.0/16", "--network-egress is required"),
    refused("1.5 egress with rules", f"{NET} network-egress-deny=10.1.0.0/16", "--network-egress is required"),
    refused("1.5 ingress", f"{NET} network-ingress=allow", "unsupported by the portable"),
    *(
        Row("1.5 rule grammar", f"{NET} network-egress=deny network-egress-allow={rule}")
        for rule in (
            "10.1.0.0/16",
            "10.1.2.3/16",
            "0.0.0.0/0:icmp",
            "10.1.0.0/16:tcp",
            "10.1.0.0/16:udp:53",
            "10.1.0.0/16:tcp:1-65535",
            "2001:db8::/32",
            "2001:db8::/32:tcp:443",
            "::/0:icmp",
            "::1/128:udp:5000-5000",
        )
    ),
    *(
        usage("1.5 rule grammar", f"{NET} network-egress=deny network-egress-deny={rule}")
        for rule in (
            "10.1.0.0/33",
            "10.1.0/16",
            "10.1.0.0/16:sctp",
            "10.1.0.0/16:tcp:0",
            "10.1.0.0/16:tcp:65536",
            "10.1.0.0/16:tcp:9-8",
            "10.1.0.0/16:tcp:8-",
            "10.1.0.0/16:tcp:",
            "10.1.0.0/16:80",
            "10.1.0.0/16:icmp:8",
            "10.1.0.0/16:tcp:1:2",
            "2001:db8::/129",
            "2001:db8::zz/64",
            "2001:db8::/32:any",
            "host.example:tcp",
            "''",
        )
    ),
    Row("1.5 rule count", f"{NET} network-egress=deny {many('network-egress-allow', 256, '10.1.0.0/16:tcp:{0}')}"),
    Row("1.5 rule count", f"{NET} network-egress=deny {many('network-egress-deny', 256, '10.1.0.0/16:tcp:{0}')}"),
    refused(
        "1.5 rule count", f"{NET} network-egress=deny {many('network-egress-allow', 257, '10.1.0.0/16:tcp:{0}')}", "256"
    ),
    refused(
        "1.5 rule count", f"{NET} network-egress=deny {many('network-egress-deny', 257, '10.1.0.0/16:tcp:{0}')}", "256"
    ),
    refused("1.5 loopback needs forward", f"{NET} host-loopback=allow", "requires --host-loopback-forward"),
    refused("1.5 loopback needs forward", "host-loopback=allow processors=3", "requires --host-loopback-forward"),
    unreported("1.5 loopback needs forward", f"{NET} host-loopback=allow microvm-report=@/absent/o.json"),
    Row(
        "1.5 forward grammar",
        f"{NET} host-loopback=allow host-loopback-forward=tcp:8080:80 +host-loopback-forward=udp:8080:80",
    ),
    *(
        usage("1.5 forward grammar", f"{NET} host-loopback=allow host-loopback-forward={text}")
        for text in (
            "tcp:80",
            "sctp:80:80",
            "tcp:0:80",
            "tcp:80:0",
            "tcp:65536:80",
            "80:80",
            "tcp:80:80:80",
            "TCP:80:80",
        )
    ),
    refused(
        "1.5 forward needs allow", f"{NET} host-loopback-forward=tcp:80:80", "requires explicit --host-loopback allow"
    ),
    refused("1.5 forward needs allow", f"{NET} host-loopback=deny host-loopback-forward=tcp:80:80"),
    Row("1.5 forward count", f"{NET} host-loopback=allow {many('host-loopback-forward', 64, 'tcp:{0}:80')}"),
    refused(
        "1.5 forward count",
        f"{NET} host-loopback=allow {many('host-loopback-forward', 65, 'tcp:{0}:80')}",
        "at most 64",
    ),
    refused(
        "1.5 forward count",
        f"{NET} host-loopback=allow host-loopback-forward=tcp:80:80 +host-loopback-forward=tcp:80:81",
        "more than once",
    ),
    Row("1.5 proxy", f"{NET} network-egress=deny host-loopback=deny network-proxy=10.0.0.1:3128", line=NO_DNS),
    refused("1.5 proxy", f"{NET} network-proxy=10.0.0.3:3128", "must match the guest gateway"),
    *(
        usage("1.5 proxy", f"{NET} network-proxy={text}")
        for text in ("10.0.0.1", "10.0.0.1:0", "gateway:80", "10.0.0.1:x")
    ),
    usage("1.5 proxy", f"{NET} network-proxy=10.0.0.1:80 +network-proxy=10.0.0.1:81", "multiple times"),
    refused("1.5 net-tap", f"{NET} net-tap=tap0", "--net-tap is incompatible"),
    refused("1.5 net-tap", "net-tap=tap0", "--net-tap is incompatible"),
]

LEGACY = [
    Row("1.5 legacy grammar", f"{NET} allow-host=10.0.0.1 +allow-host=10.1.0.0/16", line=DNS),
    Row("1.5 legacy grammar", f"{NET} allow-endpoint=10.1.0.1:443 +allow-endpoint=10.1.0.2:443", line=NO_DNS),
    *(
        usage("1.5 legacy grammar", f"{NET} allow-host={text}")
        for text in ("10.1.0.0/33", "::1", "10.1.0.0:80", "''", "1/2/3")
    ),
    usage("1.5 legacy grammar", f"{NET} block-host=host"),
    *(
        usage("1.5 legacy grammar", f"{NET} allow-endpoint={text}")
        for text in ("10.1.0.1", "10.1.0.0/16:80", "10.1.0.1:0")
    ),
    usage("1.5 legacy exclusive", f"{NET} allow-host=10.1.0.1 block-host=10.1.0.1", "cannot be used with"),
    usage("1.5 legacy exclusive", f"{NET} allow-host=10.1.0.1 allow-endpoint=10.1.0.1:80"),
    usage("1.5 legacy exclusive", f"{NET} block-host=10.1.0.1 allow-endpoint=10.1.0.1:80"),
    *(
        refused(
            "1.5 legacy and rules", f"{NET} network-egress=deny network-egress-allow=10.1.0.0/16 {option}", "combined"
        )
        for option in ("allow-host=10.1.0.1", "block-host=10.1.0.1", "allow-endpoint=10.1.0.1:80")
    ),
    refused("1.5 legacy and egress", f"{NET} network-egress=allow allow-host=10.1.0.1", "conflicts with default-deny"),
    refused(
        "1.5 legacy and egress", f"{NET} network-egress=allow allow-endpoint=10.1.0.1:80", "conflicts with default-deny"
    ),
    refused("1.5 legacy and egress", f"{NET} network-egress=deny block-host=10.1.0.1", "conflicts with default-allow"),
    Row("1.5 legacy and egress", f"{NET} network-egress=deny allow-host=10.1.0.1", line=NO_DNS),
    Row("1.5 legacy and egress", f"{NET} network-egress=allow block-host=10.1.0.1", line=DNS),
    *(
        refused("1.5 needs net", option, "requires --net")
        for option in (
            "network-egress=deny",
            "network-ingress=deny",
            "network-egress=deny network-egress-allow=10.1.0.0/16",
            "network-egress=deny network-egress-deny=10.1.0.0/16",
            "host-loopback=deny",
            "host-loopback=allow host-loopback-forward=tcp:80:80",
            "network-proxy=10.0.0.1:80",
            "allow-host=10.1.0.1",
            "block-host=10.1.0.1",
            "allow-endpoint=10.1.0.1:80",
        )
    ),
]

SERVERS = [
    Row("2.2 virtnet_dns", NET, line=DNS),
    Row("2.2 virtnet_dns", f"{NET} network-egress=allow", line=DNS),
    Row("2.2 virtnet_dns", f"{NET} network-egress=deny", line=NO_DNS),
    Row("2.2 virtnet_dns", f"{NET} network-egress=allow network-egress-deny=10.0.0.0/8", line=DNS),
    Row("2.2 virtnet_dns", f"{NET} network-egress=deny network-egress-allow=10.0.0.0/8", line=NO_DNS),
    Row("2.2 virtnet_dns", f"{NET} allow-host=10.0.0.0/24", line=DNS),
    Row("2.2 virtnet_dns", f"{NET} allow-host=10.0.0.2", line=NO_DNS),
    Row("2.2 virtnet_dns", f"{NET} block-host=10.0.0.0/24", line=NO_DNS),
    Row("2.2 virtnet_dns", f"{NET} block-host=10.1.0.0/16", line=DNS),
    Row("2.2 virtnet_dns", f"{NET} allow-endpoint=10.0.0.1:53", line=NO_DNS),
]

ROWS = ADDRESS + POLICY + LEGACY + SERVERS
