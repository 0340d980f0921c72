"""Every reader of what others write, from bytes: what Hypothesis tries in the suite and a fuzzer tries by night."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable

import msgspec

from nvx_ref.cli.host import MountFlags, NetworkFlags, network, shares
from nvx_ref.configuration import decode
from nvx_ref.errors import NvxError
from nvx_ref.images import read_erofs, read_ext4, read_gpt
from nvx_ref.outcome import decode_outcome
from nvx_ref.plan import (
    MappingPolicy,
    decode_plan,
    parse_forward,
    parse_proxy,
    parse_rule,
    parse_share,
    plan_mappings,
    plan_network,
    plan_shares,
    read_policy,
)
from nvx_ref.plan.network import network_options
from nvx_ref.plan.rules import lower_rules


def _image(reader: Callable[[int, int], object]) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        fd, path = tempfile.mkstemp()
        try:
            os.unlink(path)
            os.write(fd, data)
            return reader(fd, len(data))
        finally:
            os.close(fd)

    return read


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _words(data: bytes) -> list[str]:
    try:
        return shlex.split(_text(data))
    except ValueError:
        return []


def _policy(data: bytes) -> object:
    plan = plan_network(read_policy(data, subject="policy"))
    return network_options(plan) if plan is not None else None


def _mappings(data: bytes) -> object:
    try:
        policy = msgspec.json.decode(data, type=MappingPolicy)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        policy = MappingPolicy(readonly_paths=(_text(data),))
    return plan_mappings(policy)


READERS: dict[str, Callable[[bytes], object]] = {
    "erofs": _image(lambda fd, length: read_erofs(fd, length=length)),
    "ext4": _image(lambda fd, length: read_ext4(fd, length=length)),
    "gpt": _image(lambda fd, length: read_gpt(fd, length=length)),
    "plan": decode_plan,
    "configuration": lambda data: decode(data, "config.json"),
    "report": lambda data: decode_outcome(data, "outcome.json"),
    "policy": _policy,
    "rule": lambda data: lower_rules([parse_rule(_text(data))], what="rules"),
    "forward": lambda data: parse_forward(_text(data)),
    "proxy": lambda data: parse_proxy(_text(data), "10.0.0.2/24"),
    "share": lambda data: plan_shares([parse_share(_text(data))]),
    "mappings": _mappings,
    "mount flags": lambda data: plan_shares(shares(MountFlags(mount=tuple(_words(data)), deny=tuple(_words(data))))),
    "network flags": lambda data: network(NetworkFlags(net=_text(data), profile="portable", allow=tuple(_words(data)))),
}


def give(name: str, data: bytes) -> None:
    """Give a reader what it may get; anything but a value or an error of the family is a fault."""
    try:
        READERS[name](data)
    except NvxError as error:
        text = str(error)
    else:
        text = ""
    assert text.isprintable(), text
