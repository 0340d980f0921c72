"""Flags on the host's files and network, as the planner takes them. Nothing here knows the option parser.

The flags are one form of what an external orchestrator states as values: both plan through :mod:`nvx_ref.plan`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from nvx_ref.errors import Malformed, NotFound, NvxError, Refused
from nvx_ref.plan import (
    NetworkMode,
    NetworkPolicy,
    Owner,
    Share,
    parse_forward,
    parse_proxy,
    parse_rule,
    parse_share,
    plan_network,
    read_policy,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_FILE_BYTES = 1 << 20


class MountFlags(msgspec.Struct, frozen=True):
    """The flags on shares, as given.

    Args:
        mount: ``GUEST,HOST[,ro|rw]`` each.
        deny: Host paths that the guest doesn't see.
        allow: Host paths below a denied one that it sees.
        write: The only host paths that it may write.
        owner: ``vmm`` or ``caller``; None is ``vmm``.
    """

    mount: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    owner: str | None = None


class NetworkFlags(msgspec.Struct, frozen=True):
    """The flags on the network, as given; None and empty are not given."""

    net: str | None = None
    profile: str | None = None
    egress: str | None = None
    ingress: str | None = None
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    policy_file: str | None = None
    loopback: str | None = None
    forwards: tuple[str, ...] = ()
    proxy: str | None = None


def shares(flags: MountFlags) -> tuple[Share, ...]:
    """Return the shares that the flags mean; each policy path goes to the share that holds it.

    Raises:
        Malformed: A mount has another form.
        Refused: A policy path is in no share, or a policy comes without a share.
    """
    policies = {"deny": flags.deny, "allow": flags.allow, "write": flags.write}
    if not flags.mount:
        given = next((f"--mount-{kind}" for kind, paths in policies.items() if paths), None)
        given = given or ("--mount-owner" if flags.owner else None)
        if given:
            raise Refused("it needs a --mount", subject=given, detail="mount")
        return ()
    owner = Owner(flags.owner or Owner.VMM.value)
    found = [parse_share(text) for text in flags.mount]
    found = [msgspec.structs.replace(share, host=_absolute(share.host), owner=owner) for share in found]
    lists: list[dict[str, list[str]]] = [{kind: [] for kind in policies} for _ in found]
    for kind, paths in policies.items():
        for path in map(_absolute, paths):
            lists[_holder(path, found, f"--mount-{kind}")][kind].append(path)
    return tuple(
        msgspec.structs.replace(
            share, denied=tuple(own["deny"]), allowed=tuple(own["allow"]), writable=tuple(own["write"])
        )
        for share, own in zip(found, lists, strict=True)
    )


def network(flags: NetworkFlags) -> NetworkPolicy | None:
    """Return the policy that the flags mean, None without any.

    Raises:
        NotFound: The policy file is missing.
        Malformed: An address, rule, forward, proxy or the policy file isn't one.
        Refused: Flags need or exclude each other, or what they ask for is always denied.
    """
    if flags == NetworkFlags():
        return None
    _check_pairs(flags)
    if flags.policy_file is not None:
        raw = read_file(flags.policy_file, what="--network-egress-policy-file")
        policy = read_policy(raw, subject=flags.policy_file)
        policy = msgspec.structs.replace(policy, address=flags.net or policy.address)
        try:
            plan_network(policy)
        except NvxError as error:
            error.subject = f"{flags.policy_file}: {error.subject}"
            raise
        return policy
    address = flags.net or ""
    mode = NetworkMode(flags.egress or NetworkMode.ALLOW.value)
    proxy = parse_proxy(flags.proxy, address) if flags.proxy is not None else None
    if mode is NetworkMode.DENY and proxy is not None and not (flags.allow or flags.forwards):
        if flags.deny:
            raise Refused("a proxy alone takes no rules", subject="--network-egress-deny", detail="proxy-only")
        mode = NetworkMode.PROXY_ONLY
    return NetworkPolicy(
        mode=mode,
        address=address,
        allow=tuple(parse_rule(text) for text in flags.allow),
        deny=tuple(parse_rule(text) for text in flags.deny),
        forwards=tuple(parse_forward(text) for text in flags.forwards),
        proxy=proxy,
    )


def environment(path: str) -> tuple[str, ...]:
    """Read a file of environment entries: a JSON array of ``NAME=VALUE``.

    Raises:
        NotFound: It is missing.
        Malformed: It is over 1 MiB, or isn't that.
        Refused: It can't be read.
    """
    raw = read_file(path, what="--environment-file")
    try:
        return msgspec.json.decode(raw, type=tuple[str, ...])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Malformed(f"not a JSON array of NAME=VALUE: {error}", subject=path, detail="environment") from None


def read_file(path: str, *, what: str) -> bytes:
    """Read a small file that an option names.

    Args:
        path: At most 1 MiB; a FIFO or device is refused, not waited for.
        what: The option, for the errors.

    Raises:
        NotFound: It is missing.
        Malformed: It is over 1 MiB.
        Refused: It isn't a regular file, or can't be read.
    """
    if "\0" in path or not os.path.isfile(path):
        if os.path.lexists(path.replace("\0", "")):
            raise Refused("not a regular file", subject=f"{what} {path}", detail="kind")
        raise NotFound("there is no such file", subject=f"{what} {path}", detail="file")
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise Refused(f"it can't be read: {error.strerror}", subject=f"{what} {path}", detail="unreadable") from error
    if len(raw) > MAX_FILE_BYTES:
        raise Malformed(f"over {MAX_FILE_BYTES} bytes", subject=f"{what} {path}", detail="length")
    return raw


def _check_pairs(flags: NetworkFlags) -> None:
    if (flags.net is None) is not (flags.profile is None):
        raise Refused("--net and --network-profile portable go together", subject="--net", detail="net")
    given = {
        "--network-egress": flags.egress,
        "--network-egress-allow": flags.allow,
        "--network-egress-deny": flags.deny,
        "--host-loopback-forward": flags.forwards,
        "--network-proxy": flags.proxy,
    }
    if flags.policy_file is not None:
        if excluded := [option for option, value in given.items() if value]:
            raise Refused(f"it excludes {', '.join(excluded)}", subject="--network-egress-policy-file", detail="policy")
    elif flags.net is None:
        raise Refused("the network's flags need --net and --network-profile", subject="--net", detail="net")
    if flags.ingress == "allow":
        raise Refused("what comes in is always denied", subject="--network-ingress", detail="ingress")
    if (flags.allow or flags.deny) and flags.egress is None:
        raise Refused("rules need it", subject="--network-egress", detail="egress")
    if flags.loopback == "allow" and not (flags.forwards or flags.policy_file):
        raise Refused("allow needs a --host-loopback-forward", subject="--host-loopback", detail="loopback")
    if flags.forwards and flags.loopback != "allow":
        raise Refused("it needs --host-loopback allow", subject="--host-loopback-forward", detail="loopback")


def _absolute(path: str) -> str:
    """Join, not normalise: a link or a `..` in the path stays visible to whoever judges it."""
    return os.path.join(os.getcwd(), path) if path else path


def _holder(path: str, found: Sequence[Share], option: str) -> int:
    holders = [
        index
        for index, share in enumerate(found)
        if path == share.host or path.startswith(share.host.rstrip(os.sep) + os.sep)
    ]
    if not holders:
        raise Refused("it lies in no --mount", subject=f"{option} {path}", detail="policy")
    return max(holders, key=lambda index: len(found[index].host))
