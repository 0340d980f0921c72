"""Every reader of what others write, from bytes: what Hypothesis tries in the suite and a fuzzer tries by night."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Callable

import msgspec

from harness.images import EROFS_UUID, unpack, write_artifacts
from nvx_ref.cli.host import MountFlags, NetworkFlags, network, shares
from nvx_ref.configuration import SandboxConfiguration, decode, encode
from nvx_ref.errors import NvxError
from nvx_ref.images import ImageFormat, ScratchBinding, find_artifacts, verify_distro
from nvx_ref.images.artifacts import parse_checksums
from nvx_ref.images.checked import own
from nvx_ref.images.erofs import read_erofs
from nvx_ref.images.ext4 import read_ext4
from nvx_ref.images.gpt import read_gpt
from nvx_ref.images.manifest import check_packages, read_head
from nvx_ref.outcome import decode_outcome
from nvx_ref.plan import (
    Blocks,
    ColdPlan,
    MappingPolicy,
    decode_plan,
    encode_plan,
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
from nvx_ref.platform import files
from nvx_ref.store import Journal, RuntimeRecord
from nvx_ref.store.records import decode as decode_record
from resealing import put, resealed

DISK, SCRATCH = 2 << 20, 8 << 20
HEAD = 28 << 10
CHECKSUM_FLAGS = {"erofs": 1024 + 8, "ext4": 0x464 + 1}


def _image(reader: Callable[[int, int], object], length: int = 0) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        fd, path = tempfile.mkstemp()
        try:
            os.unlink(path)
            os.write(fd, data)
            if length > len(data):
                os.truncate(fd, length)
            return reader(fd, max(length, len(data)))
        finally:
            os.close(fd)

    return read


def _manifest(data: bytes) -> object:
    fd, path = tempfile.mkstemp()
    os.unlink(path)
    os.write(fd, data)
    with own(fd, path, files.seal(fd)) as manifest:
        head = read_head(manifest, "/images/distro")
        return check_packages(manifest, head)


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


def _mount_flags(data: bytes) -> object:
    words = _words(data)
    return plan_shares(shares(MountFlags(mount=tuple(words[:2]), deny=tuple(words[2:]))))


_DISK = _image(lambda fd, length: read_gpt(fd, length=length), DISK)

READERS: dict[str, Callable[[bytes], object]] = {
    "erofs": _image(lambda fd, length: read_erofs(fd, length=length)),
    "ext4": _image(lambda fd, length: read_ext4(fd, length=length), SCRATCH),
    "gpt": _DISK,
    "gpt with right checksums": lambda data: _DISK(resealed(data[:HEAD])),
    "gpt of 4,096-byte sectors": lambda data: _DISK(resealed(data[:HEAD], 4096)),
    "manifest": _manifest,
    "checksums": lambda data: parse_checksums(data, subject="SHA256SUMS"),
    "runtime record": lambda data: decode_record(data, RuntimeRecord, "runtime.json"),
    "journal": lambda data: decode_record(data, Journal, "launch.json"),
    "plan": decode_plan,
    "configuration": lambda data: decode(data, "config.json"),
    "report": lambda data: decode_outcome(data, "outcome.json"),
    "policy": _policy,
    "rule": lambda data: lower_rules([parse_rule(_text(data))], what="rules"),
    "forward": lambda data: parse_forward(_text(data)),
    "proxy": lambda data: parse_proxy(_text(data), "10.0.0.2/24"),
    "share": lambda data: plan_shares([parse_share(_text(data))]),
    "mappings": _mappings,
    "mount flags": _mount_flags,
    "network flags": lambda data: network(
        NetworkFlags(net="10.0.0.2/24", profile="portable", egress="deny", allow=tuple(_words(data)))
    ),
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


_DIGEST = b"0" * 64
_PROCESS = b'{"pid":7,"startTime":8,"boot":"11111111-1111-1111-1111-111111111111"}'
_LAUNCH = (
    b'{"format":1,"launchId":"00000000000000000000000000000000","process":%s,"endpoint":"/s/control.sock",'
    b'"log":{"volume":"1","file":"2"}' % _PROCESS
)
_PARTS = (b"openvmm", b"kernel", b"initramfs", b"bootContract", b"controlContract")
_IDENTITY = b",".join(b'"%s":"sha256:%s"' % (part, _DIGEST) for part in _PARTS)
_REPORT = (
    b'{"schema_version":1,"outcome":{"operation":"run","category":"success","status_code":0},'
    b'"network_policy":{},"teardown":{}}'
)
_POLICY = (
    b'{"mode":"deny","allow":[{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"],"protocol":"tcp","ports":"1-2"}],'
    b'"forwards":[{"protocol":"udp","host":1,"guest":2}],"proxy":3}'
)
TEXTS: dict[str, list[bytes]] = {
    "manifest": [b'{"format":1,"artifact":"distro","artifact_sha256":"%s","packages":[{"name":"a"}]}' % _DIGEST],
    "checksums": [b"%s  bin/openvmm\n%s *guest/vmlinux\r\n" % (_DIGEST, _DIGEST)],
    "runtime record": [_LAUNCH + b',"identity":{%s}}' % _IDENTITY],
    "journal": [_LAUNCH + b"}"],
    "report": [_REPORT],
    "policy": [_POLICY],
    "rule": [b"10.0.0.0/8:tcp:1-2", b"fd00::/64:udp", b"::1:icmp"],
    "forward": [b"tcp:1:2"],
    "proxy": [b"10.0.0.1:80"],
    "share": [b"/in,/tmp,rw"],
    "mappings": [b'{"readonlyPaths":["/tmp"],"readwritePaths":["/var/tmp"],"deniedPaths":["/none"]}'],
    "mount flags": [b"/in,/tmp,rw /on,/var/tmp"],
    "network flags": [b"10.0.0.2/24", b"10.0.0.0/24:tcp:1 fd00::/64"],
}


def seeds(name: str) -> list[bytes]:
    """Return what a reader takes: where changes of it begin. An empty input is always one of them."""
    if name in TEXTS:
        return [b"", *TEXTS[name]]
    with tempfile.TemporaryDirectory() as place:
        return [b"", *_made(place)[name]]


def _made(place: str) -> dict[str, list[bytes]]:
    images = unpack(os.path.join(place, "images"))
    artifacts = find_artifacts(write_artifacts(os.path.join(place, "release")).directory)
    heads: dict[str, bytes] = {}
    paths = {"erofs": images.erofs, "gpt": images.gpt, "gpt4k": images.gpt4k, "ext4": images.scratch}
    for kind, path in paths.items():
        with open(path, "rb") as file:
            heads[kind] = file.read(HEAD)
    plan = ColdPlan(version=1, blocks=Blocks(format=ImageFormat.EROFS, identity=EROFS_UUID))
    distro = verify_distro(images.erofs, format=ImageFormat.EROFS, identity=EROFS_UUID)
    kept = SandboxConfiguration(
        format=1, plan=plan, artifacts=artifacts, distro=distro, scratch=ScratchBinding.of(images.scratch)
    )
    # Without the flag no checksum stands between a change and the fields.
    plain = {kind: put(heads[kind], at, bytes(1)) for kind, at in CHECKSUM_FLAGS.items()}
    return {
        "erofs": [heads["erofs"], plain["erofs"]],
        "ext4": [heads["ext4"], plain["ext4"]],
        "gpt": [heads["gpt"]],
        "gpt with right checksums": [heads["gpt"]],
        "gpt of 4,096-byte sectors": [heads["gpt4k"]],
        "plan": [encode_plan(plan)],
        "configuration": [encode(kept)],
    }
