"""The agent's readers, compiled for this machine: every rule of the contract, hostile bytes, and the fake's reading."""

from __future__ import annotations

import base64
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fake_openvmm import nvxc, nvxs
from fake_openvmm.blocks import Unmountable
from fake_openvmm.tokens import BootTokens
from harness import images

Ask = Callable[..., list[str]]

INSTANCE = bytes(range(16))
IDENTITY = "11111111-1111-1111-1111-111111111111"


def record(type_: int, payload: bytes = b"", *, epoch: int = 7, sequence: int = 9, **fields: object) -> bytes:
    magic, version, flags = fields.get("magic", b"NVXS"), fields.get("version", 1), fields.get("flags", 0)
    instance = fields.get("instance", bytes(16) if type_ <= 2 else INSTANCE)
    if type_ <= 2 and "instance" not in fields:
        epoch, sequence = int(str(fields.get("first", 0))), 0
    length = fields.get("length", len(payload))
    return struct.pack("<4sHBB16sQQI", magic, version, type_, flags, instance, epoch, sequence, length) + payload


def number(value: int) -> bytes:
    return value.to_bytes(4, "little")


GOOD = {
    "GUEST_ATTACH": record(1),
    "HOST_ATTACH": record(2, bytes(range(32))),
    "RESET": record(3),
    "ACK": record(4, number(4_194_314)),
    "the least ACK": record(4, number(65_536)),
    "CREDIT": record(9, number(1)),
    "DATA": record(5, b"NVXSNVXS"),
    "the least DATA": record(5, b"x"),
    "the most DATA": record(5, b"x" * 65_536),
    "WAIT": record(6),
    "READY": record(7),
    "ERROR": record(8, number(1)),
    "the largest numbers": record(7, epoch=2**64 - 1, sequence=2**64 - 1),
}
BAD = {
    "magic": record(7, magic=b"XVXS"),
    "version": record(7, version=2),
    "type 0": record(0),
    "type 10": record(10),
    "type 99": record(99),
    "flags": record(7, flags=1),
    "empty DATA": record(5),
    "DATA too long": record(5, length=65_537),
    "DATA far too long": record(5, length=2**32 - 1),
    "small window": record(4, number(65_535)),
    "large window": record(4, number(4_194_315)),
    "no credit": record(9, number(0)),
    "large credit": record(9, number(4_194_315)),
    "ACK of 3 bytes": record(4, bytes(3)),
    "RESET with a body": record(3, b"x"),
    "WAIT with a body": record(6, b"x"),
    "READY with a body": record(7, b"x"),
    "HOST_ATTACH of 31 bytes": record(2, bytes(31)),
    "GUEST_ATTACH with a body": record(1, b"x"),
    "GUEST_ATTACH with an instance": record(1, instance=INSTANCE, epoch=0, sequence=0),
    "GUEST_ATTACH with an epoch": record(1, first=1),
    "ERROR 0": record(8, number(0)),
    "ERROR 2": record(8, number(2)),
    "ERROR of 5 bytes": record(8, bytes(5)),
}


def fake_records(raw: bytes) -> str:
    parser = nvxs.Parser()
    parser.feed(raw)
    found: list[str] = []
    try:
        while (one := parser.take()) is not None:
            head = nvxs.encode(one.type, one.payload, instance=one.instance, epoch=one.epoch, sequence=one.sequence)
            said = f"{one.type} {one.instance.hex()} {one.epoch} {one.sequence} {one.payload.hex()}"
            found.append(f"{said} {head[:44].hex()};")
    except nvxs.RecordError:
        found.append("error")
    return "".join(found)


@pytest.mark.parametrize("piece", [1, 7, 44, 4096, 1 << 20])
def test_records_are_read_whole_however_they_come(ask: Ask, piece: int) -> None:
    inputs = [*GOOD.values(), b"".join(GOOD.values())]
    found = ask("nvxs", inputs, str(piece))
    assert found == [fake_records(one) for one in inputs]
    assert all(not one.endswith("error") for one in found)
    assert found[-1].count(";") == len(GOOD)


@pytest.mark.parametrize("name", BAD)
def test_a_record_against_the_rules_is_the_last(ask: Ask, name: str) -> None:
    after = BAD[name] + GOOD["READY"] * 2
    assert ask("nvxs", [after, GOOD["READY"] + after], "44") == ["error", f"{fake_records(GOOD['READY'])}error"]


def test_a_record_cut_short_anywhere_is_waited_for(ask: Ask) -> None:
    whole = GOOD["HOST_ATTACH"]
    assert ask("nvxs", [whole[:size] for size in range(len(whole))], "16") == [""] * len(whole)


def test_hostile_records_are_read_as_the_fake_reads_them(ask: Ask) -> None:
    chance = random.Random(20)  # noqa: S311 - the same inputs every time
    inputs = [mutated(chance, b"".join(chance.choices(list(GOOD.values()), k=3))[:9000]) for _ in range(1500)]
    assert ask("nvxs", inputs, "100") == [fake_records(one) for one in inputs]


def mutated(chance: random.Random, raw: bytes) -> bytes:
    made = bytearray(raw)
    for _ in range(chance.randrange(4)):
        what = chance.randrange(4)
        place = chance.randrange(len(made)) if made else 0
        if what == 0 and made:
            made[place] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        elif what == 1:
            del made[place:]
        elif what == 2:
            del made[place : place + chance.randrange(1, 9)]
        else:
            made[place:place] = chance.randbytes(chance.randrange(1, 9))
    return bytes(made)


def frame(kind: int, request: int = 1, payload: bytes = b"", **fields: int) -> bytes:
    values = {"version": 1, "flags": 0, "status": 0, "length": len(payload), **fields}
    head = (values["version"], kind, values["flags"], request, values["status"], values["length"])
    return struct.pack("<4sBBHQiI", b"NVXC", *head) + payload


def item(data: bytes) -> bytes:
    return number(len(data)) + data


def exec_payload(*arguments: bytes, timeout: int = 0, **more: object) -> bytes:
    head = struct.pack("<IHH", timeout, len(arguments), 1 if more else 0)
    directory = more.get("cwd", b"")
    entries = more.get("env", [])
    assert isinstance(directory, bytes)
    assert isinstance(entries, list)
    if more:
        flags = more.get("flags", bool(directory) | bool("env" in more) << 1)
        head += struct.pack("<HHI", flags, len(entries), len(directory))
    return head + b"".join(map(item, arguments)) + directory + b"".join(map(item, entries))


GOLDEN_EXEC = "8813000003000000070000002f62696e2f7368020000002d63070000006563686f206869"
EXECS = [
    bytes.fromhex(GOLDEN_EXEC),
    bytes.fromhex("0000000001000100010000000400000" + "0080000002f62696e2f7077642f746d70"),
    exec_payload(b"/bin/true", env=[]),
    exec_payload(b"/bin/true", env=[b"A=1", b"AB=", b"B=A=2"], cwd=b"/tmp"),
    exec_payload(b"/bin/true", env=[b"A=1"], flags=6),
    exec_payload(*[b"/x" * 2048] * 64),
    exec_payload(b"/x", env=[b"%d=" % one for one in range(256)]),
    # against the rules
    b"",
    exec_payload(),
    exec_payload(b"relative"),
    exec_payload(b"/a\0b"),
    exec_payload(b""),
    exec_payload(*[b"/x"] * 65),
    exec_payload(b"/x" * 2049),
    exec_payload(b"/x", env=[b"A=1", b"A=2"]),
    exec_payload(b"/x", env=[b"=1"]),
    exec_payload(b"/x", env=[b"A"]),
    exec_payload(b"/x", env=[b"A=1"], flags=0),
    exec_payload(b"/x", env=[], flags=4),
    exec_payload(b"/x", env=[], flags=8),
    exec_payload(b"/x", cwd=b"tmp"),
    exec_payload(b"/x", cwd=b"/tmp", flags=0),
    exec_payload(b"/x", env=[], flags=3),
    exec_payload(b"/x", cwd=b"/" * 4097),
    exec_payload(b"/x", env=[b"%d=" % one for one in range(257)]),
    exec_payload(b"/x") + b"\0",
    struct.pack("<IHH", 0, 1, 2) + item(b"/x"),
]


def fake_exec(raw: bytes) -> str:
    try:
        found = nvxc.decode_exec(raw)
    except nvxc.InvalidRequest:
        return "bad"
    own = found.environment is not None
    parts = [f"{found.timeout_ms} {int(own)} {int(found.inherits)} :"]
    parts += [f" {one.hex()}" for one in found.arguments]
    parts.append(" :" + (f" {found.directory.hex()}" if found.directory else ""))
    parts.append(" :" + "".join(f" {one.hex()}" for one in found.environment or []))
    return "".join(parts)


def fake_frame(raw: bytes) -> str:
    try:
        found = nvxc.decode(raw)
    except nvxc.FrameError:
        return "bad"
    return f"{found.kind} {found.request} {found.payload.hex()}"


def fake_maps(raw: bytes) -> str:
    try:
        first, entries = nvxc.decode_maps(raw)
    except nvxc.InvalidRequest:
        return "bad"
    return f"{first}" + "".join(f" :{int(one.read_only)} {one.source.hex()} {one.target.hex()}" for one in entries)


def maps_payload(*entries: tuple[int, bytes, bytes], first: int = 0, count: int | None = None) -> bytes:
    head = struct.pack("<II", first, len(entries) if count is None else count)
    return head + b"".join(struct.pack("<HHH", flags, len(a), len(b)) + a + b for flags, a, b in entries)


MAPS = [
    bytes.fromhex("00000000020000000000010005003" + "02f776f726b0100050004003" + "12f7372632f737263"),
    maps_payload((0, b"0", b"/x"), first=9),
    maps_payload((1, b"a/.b/..c", b"/..."), (0, b"x" * 4095, b"/" + b"y" * 4094)),
    # against the rules
    b"",
    maps_payload(),
    maps_payload((2, b"0", b"/x")),
    maps_payload((0, b"", b"/x")),
    maps_payload((0, b"0", b"x")),
    maps_payload((0, b"0", b"/")),
    maps_payload((0, b"/0", b"/x")),
    maps_payload((0, b".", b"/x")),
    maps_payload((0, b"a/../b", b"/x")),
    maps_payload((0, b"a//b", b"/x")),
    maps_payload((0, b"a/", b"/x")),
    maps_payload((0, b"a", b"/x/..")),
    maps_payload((0, b"a\0", b"/x")),
    maps_payload((0, b"x" * 4096, b"/x")),
    maps_payload((0, b"0", b"/x"), count=2),
    maps_payload((0, b"0", b"/x"), count=2**32 - 1),
    maps_payload((0, b"0", b"/x")) + b"x",
]

FRAMES = [
    frame(1),
    frame(2, 2**64 - 1, b"x" * 100),
    frame(0x81),
    bytes.fromhex("4e5658430101000008070605040302010000000000000000"),
    frame(1, 0),
    frame(1, version=2),
    frame(1, flags=1),
    frame(1, status=1),
    frame(1, status=-1),
    frame(1, length=1),
    frame(1, payload=b"xx", length=1),
    frame(1)[:23],
    b"",
]

KINDS: dict[str, tuple[list[bytes], Callable[[bytes], str]]] = {
    "nvxc": (FRAMES, fake_frame),
    "exec": (EXECS, fake_exec),
    "maps": (MAPS, fake_maps),
}


@pytest.mark.parametrize("mode", KINDS)
def test_requests_are_taken_and_refused_by_the_rules(ask: Ask, mode: str) -> None:
    inputs, reading = KINDS[mode]
    found = ask(mode, inputs)
    assert found == [reading(one) for one in inputs]
    assert {"bad"} < set(found)


@pytest.mark.parametrize("mode", KINDS)
def test_hostile_requests_are_read_as_the_fake_reads_them(ask: Ask, mode: str) -> None:
    inputs, reading = KINDS[mode]
    chance = random.Random(mode)  # noqa: S311 - the same inputs every time
    tried = [mutated(chance, chance.choice([one for one in inputs if len(one) < 4096])) for _ in range(2000)]
    found = ask(mode, tried)
    assert found == [reading(one) for one in tried]
    assert any(one != "bad" for one in found)


TEXTS = [
    '{"id":1,"op":"exec","argv":["/bin/echo","\\u00e9\\ud83d\\ude00\\n\\"\\\\"],"timeoutMs":0}',
    "[]",
    "{}",
    ' [ 1 , -2 , true, false, null, "x", [ ], { "a" : 1 } ] ',
    '"é😀"',
    "0",
    "-0",
    "123456789012345678",
    "1.5",
    "1e9",
    "-1.25E-3",
    '{"a":1,"a":2}',
    # no JSON
    "",
    " ",
    "{",
    "[1,]",
    "[,1]",
    '{"a"}',
    '{"a":}',
    "{a:1}",
    "01",
    "1.",
    "1e",
    "+1",
    ".5",
    "--1",
    '"',
    '"\\x"',
    '"\\u12"',
    '"\\u12g4"',
    '"\n"',
    "tru",
    "nulll",
    "[1 2]",
    "[1]]",
    "[" * 100 + "]" * 100,
]


def as_c(value: object) -> object:
    if isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**18):
        return 0.5
    if isinstance(value, list):
        return [as_c(one) for one in value]
    if isinstance(value, dict):
        return {name: as_c(one) for name, one in value.items()}
    return value


def read_json(raw: bytes) -> object:
    """As Python reads it, without what only Python takes, and no deeper than a request is."""
    try:
        text = raw.decode()
        found = json.loads(text, parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    except (ValueError, RecursionError):
        return "bad"
    return "bad" if depth(found) > 64 else as_c(found)


def depth(value: object) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max((depth(one) for one in inside), default=0)


def c_json(said: str) -> object:
    return said if said == "bad" else json.loads(said)


def test_json_is_read_as_python_reads_it(ask: Ask) -> None:
    inputs = [text.encode() for text in TEXTS]
    found = ask("json", inputs)
    assert [c_json(one) for one in found] == [read_json(one) for one in inputs]
    assert found.count("bad") == 24


def test_what_is_no_utf8_is_no_json(ask: Ask) -> None:
    broken = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\x80"]
    assert ask("json", [b'"' + one + b'"' for one in broken]) == ["bad"] * len(broken)


def test_hostile_json_is_read_as_python_reads_it(ask: Ask) -> None:
    chance = random.Random(7)  # noqa: S311 - the same inputs every time
    whole = [text.encode() for text in TEXTS if text]
    inputs = [mutated(chance, chance.choice(whole)) for _ in range(2000)]
    # Half of a surrogate pair is a text to Python and none to anybody else.
    inputs = [one for one in inputs if b"\\ud" not in one.lower()]
    found = ask("json", inputs)
    assert [c_json(one) for one in found] == [read_json(one) for one in inputs]


def test_a_document_of_too_many_parts_is_no_request(ask: Ask) -> None:
    assert ask("json", [b"[" + b"1," * 70_000 + b"1]", b"[" + b"1," * 60_000 + b"1]"])[0] == "bad"


def test_base64_is_the_usual_one(ask: Ask) -> None:
    inputs = [bytes(range(size, 0, -1)) for size in range(70)]
    assert ask("base64", inputs) == [base64.b64encode(one).decode() for one in inputs]


LAYER = "nvx_layer=distro,0xd0003000"
RAM = "nvx_overlay_upper=ramfs"
DISK = "nvx_scratch=0xd0006000,ext4"
WHO = "nvx_workload_uid=65534 nvx_workload_gid=65534"
BOX = f"nvx_sandbox=1 {LAYER},erofs:{IDENTITY} {RAM} {WHO}"
LINES = [
    "",
    "quiet",
    BOX,
    f"{BOX} nvx_lifecycle=managed nvx_control_tty=hvc2",
    f"nvx_sandbox=1 {LAYER},gpt {DISK} {WHO} nvx_entrypoint=/bin/true nvx_hostname=box nvx_arg=a nvx_arg=b=c",
    f"nvx_sandbox=1 {LAYER},erofs nvx_layer=custom,0xd0005000,gpt:{IDENTITY.upper()} {RAM} {WHO}",
    f"{BOX} nvx_share=0-a,/in/0,ro nvx_share=1-b,/in/1,rw nvx_memory_max=1 nvx_pids_max=2",
    f"hostname=direct nvx_maps=3 virtfs_dir=/x {WHO}",
    f"nvx_workload_account=create {WHO}",
    "nvx_lifecycle=one-shot",
    # refused
    f"nvx_sandbox=2 {LAYER},erofs {RAM} {WHO}",
    f"nvx_sandbox=1 nvx_sandbox=1 {LAYER},erofs {RAM} {WHO}",
    f"nvx_sandbox=1 {RAM} {WHO}",
    f"nvx_sandbox=1 {LAYER},erofs {RAM}",
    f"nvx_sandbox=1 {LAYER},{IDENTITY} {RAM} {WHO}",
    f"nvx_sandbox=1 {LAYER},erofs: {RAM} {WHO}",
    f"nvx_sandbox=1 {LAYER},erofs:{IDENTITY}x {RAM} {WHO}",
    f"nvx_sandbox=1 {LAYER},ext4 {RAM} {WHO}",
    f"nvx_sandbox=1 nvx_layer=distro,0xd0004000,erofs {RAM} {WHO}",
    f"nvx_sandbox=1 nvx_layer=scratch,0xd0006000,erofs {RAM} {WHO}",
    f"nvx_sandbox=1 nvx_layer=distro {RAM} {WHO}",
    f"nvx_sandbox=1 nvx_layer {RAM} {WHO}",
    f"{BOX} {LAYER},gpt",
    f"{BOX} {DISK}",
    f"{BOX} {RAM}",
    f"nvx_sandbox=1 {LAYER},erofs {WHO}",
    f"nvx_sandbox=1 {LAYER},erofs nvx_overlay_upper=tmpfs {WHO}",
    f"nvx_sandbox=1 {LAYER},erofs nvx_overlay_upper {WHO}",
    f"{BOX} nvx_hostname=Box",
    f"{BOX} nvx_hostname=-a",
    f"{BOX} nvx_hostname={'a' * 64}",
    f"{BOX} nvx_entrypoint=bin/sh",
    f"{BOX} nvx_arg=",
    f"{BOX} nvx_memory_max=0",
    f"{BOX} nvx_pids_max=x",
    f"{BOX} nvx_share=a,/x",
    f"{BOX} nvx_share=a,/x,rx",
    f"{BOX} nvx_share=a,x,ro",
    f"{BOX} nvx_share=a,/x/../y,ro",
    f"{BOX} nvx_share=..,/x,ro",
    f"{BOX} nvx_share=a,/x,ro nvx_share=a,/y,ro",
    f"{BOX} nvx_share=a,/x,ro nvx_share=b,/x,ro",
    f"{BOX} nvx_lifecycle=managed",
    "nvx_lifecycle=managed nvx_control_tty=hvc2",
    "nvx_maps=3",
    "nvx_maps=0 virtfs_dir=/x",
    "nvx_maps=4097 virtfs_dir=/x",
    "nvx_maps=1 nvx_maps=1 virtfs_dir=/x",
    "nvx_workload_account=make",
    "nvx_workload_uid=x nvx_workload_gid=1",
]
UPPERS = {None: 0, "ext4": 1, "ramfs": 2}


def fake_tokens(line: bytes) -> str:
    text = line.decode()
    try:
        found = BootTokens(text)
        if (found.layered and found.identity is None) or (
            found.lifecycle == "managed" and (found.identity is None or found.control_tty is None)
        ):
            return "bad"
    except Unmountable:
        return "bad"
    uid, gid = found.identity or (0, 0)
    entry = found.entrypoint if found.layered else "/bin/sh"
    parts = [int(found.layered), int(found.lifecycle == "managed"), uid, gid, UPPERS[found.upper], found.mappings]
    parts += [len(found.shares), found.hostname, entry]
    parts += [f"{one.role},{one.format},{one.identity or '-'}" for one in found.layers] + found.arguments
    return " ".join(map(str, parts))


def test_the_command_line_is_read_as_the_fake_reads_it(ask: Ask) -> None:
    inputs = [line.encode() for line in LINES]
    found = [one.lower() if IDENTITY.upper() in one else one for one in ask("tokens", inputs)]
    assert found == [fake_tokens(one) for one in inputs]
    assert found.count("bad") == len(LINES) - 10


def hostile_lines() -> Iterator[bytes]:
    chance = random.Random(3)  # noqa: S311 - the same inputs every time
    words = sorted({word for line in LINES for word in line.split()})
    for _ in range(2000):
        yield " ".join(chance.choices(words, k=chance.randrange(1, 9))).encode() + b" " + BOX.encode()


def test_hostile_command_lines_are_read_as_the_fake_reads_them(ask: Ask) -> None:
    inputs = list(hostile_lines())
    found = [one.replace(IDENTITY.upper(), IDENTITY) for one in ask("tokens", inputs)]
    assert found == [fake_tokens(one) for one in inputs]
    assert any(one != "bad" for one in found)


def test_images_say_what_they_are(ask: Ask, tmp_path: Path) -> None:
    found = images.unpack(str(tmp_path))
    assert ask("image", [path.encode() for path in (found.erofs, found.gpt, found.gpt4k, found.scratch)]) == [
        f"gpt bad 0;gpt bad 0;erofs {found.uuid};ext4 bad",
        f"gpt {found.guid} 1;gpt bad 0;erofs bad;ext4 bad",
        f"gpt bad 0;gpt {found.guid} 1;erofs bad;ext4 bad",
        f"gpt bad 0;gpt bad 0;erofs bad;ext4 {images.SCRATCH_UUID}",
    ]


def test_a_changed_byte_of_a_gpt_is_noticed(ask: Ask, tmp_path: Path) -> None:
    whole = Path(images.unpack(str(tmp_path)).gpt).read_bytes()
    head = range(512, 512 + 92)
    places = [*head, 1024, 1024 + 60, 1024 + 16383]
    paths: list[bytes] = []
    for place in places:
        path = tmp_path / f"changed-{place}"
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 : 20_000])
        paths.append(str(path).encode())
    assert {one.split(";")[0] for one in ask("image", paths)} == {"gpt bad 0"}


def test_a_gpt_that_asks_for_too_much_is_refused(ask: Ask, tmp_path: Path) -> None:
    whole = bytearray(Path(images.unpack(str(tmp_path)).gpt).read_bytes()[:20_000])
    paths: list[bytes] = []
    for name, (at, size, value) in {
        "count": (80, 4, 2**32 - 1),
        "size": (84, 4, 2**32 - 1),
        "small": (84, 4, 64),
        "place": (72, 8, 2**64 - 1),
        "header": (12, 4, 513),
        "short": (12, 4, 91),
        "none": (80, 4, 0),
    }.items():
        made = bytearray(whole)
        made[512 + at : 512 + at + size] = value.to_bytes(size, "little")
        made[512 + 16 : 512 + 20] = bytes(4)
        length = min(int.from_bytes(made[512 + 12 : 512 + 16], "little"), 512)
        made[512 + 16 : 512 + 20] = zlib.crc32(made[512 : 512 + length]).to_bytes(4, "little")
        path = tmp_path / name
        path.write_bytes(made)
        paths.append(str(path).encode())
    assert [one.split(";")[0] for one in ask("image", paths)] == ["gpt bad 0"] * len(paths)
