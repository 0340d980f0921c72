"""Records: one valid form, and damage that is always reported and never read as absence."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvx_ref.errors import Malformed
from nvx_ref.platform.contract import MAX_PID, FileId, ProcessIdentity
from nvx_ref.store.identity import IdentityPart, RuntimeIdentity
from nvx_ref.store.records import FORMAT, MAX_RECORD, Journal, RuntimeRecord, decode, encode

GOLDENS = Path(__file__).resolve().parents[2] / "goldens" / "store" / "v1"
RUNTIMES = sorted(GOLDENS.glob("runtime*.json"))
JOURNALS = sorted(GOLDENS.glob("launch*.json"))
LAUNCH_ID = "000102030405060708090a0b0c0d0e0f"
IDENTITY = RuntimeIdentity(
    "sha256:" + "1" * 64,
    "sha256:" + "2" * 64,
    "sha256:" + "3" * 64,
    "microvm-abi/2",
    "nvx-microvm-v2-control-v2/session-1",
)
BOOT = "0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f9"
LOG = FileId("fe01", "1a2b3c")
ENDPOINT = "/run/nvx/alpha/control.sock"
RUNTIME = (GOLDENS / "runtime.json").read_bytes()


def kind_of(path: Path) -> type[Journal | RuntimeRecord]:
    return RuntimeRecord if path.name.startswith("runtime") else Journal


def fault(raw: bytes, kind: type[Journal | RuntimeRecord] = RuntimeRecord) -> Malformed:
    with pytest.raises(Malformed) as caught:
        decode(raw, kind, "/s/x/runtime.json")
    assert caught.value.subject == "/s/x/runtime.json"
    assert caught.value.reason
    assert "\n" not in str(caught.value)
    return caught.value


def reported_or_read(raw: bytes, kind: type[Journal | RuntimeRecord]) -> Journal | RuntimeRecord | None:
    """Any other exception than the typed one fails the test."""
    try:
        return decode(raw, kind, "x")
    except Malformed:
        return None


def edit(old: str, new: str) -> bytes:
    text = RUNTIME.decode()
    assert text.count(old) == 1, old
    return text.replace(old, new).encode()


@pytest.mark.spec("620.scope1.k")
@pytest.mark.parametrize("path", [*RUNTIMES, *JOURNALS], ids=lambda path: path.name)
def test_every_released_record_is_read_and_written_byte_for_byte(path: Path) -> None:
    raw = path.read_bytes()
    assert encode(decode(raw, kind_of(path), path.name), path.name) == raw


def test_the_goldens_hold_every_variant() -> None:
    processes = [decode(path.read_bytes(), RuntimeRecord, "").process for path in RUNTIMES]
    assert {(p.pid_namespace is None, p.pidfs_inode is None) for p in processes} == {
        (a, b) for a in (True, False) for b in (True, False)
    }
    markers = [decode(path.read_bytes(), Journal, "") for path in JOURNALS if "marker" in path.name]
    assert [(marker.process, marker.boot) for marker in markers] == [(None, BOOT), (None, None)]
    assert len(JOURNALS) == 6


@pytest.mark.spec("620.scope1.c", "620.scope1.d", "620.scope1.e", "620.scope1.f")
def test_the_runtime_record_says_what_runs() -> None:
    assert decode(RUNTIME, RuntimeRecord, "") == RuntimeRecord(
        format=FORMAT,
        launch_id=LAUNCH_ID,
        process=ProcessIdentity(4711, 123456, BOOT, 4026531836, 98765),
        endpoint=ENDPOINT,
        log=LOG,
        identity=IDENTITY,
    )


def test_a_journal_has_its_boot_in_the_process_or_beside_it() -> None:
    marker = (GOLDENS / "launch-marker-boot.json").read_bytes()
    assert decode(marker, Journal, "").boot == BOOT
    whole = (GOLDENS / "launch.json").read_text()
    both = whole.removesuffix("\n}\n") + f',\n  "boot": "{BOOT}"\n}}\n'
    assert "boot there" in str(fault(both.encode(), Journal))
    with pytest.raises(Malformed):
        decode(marker.replace(BOOT.encode(), b""), Journal, "")
    first = marker.replace(b'"format": 1,', f'"boot": "{BOOT}", "format": 1,'.encode()).replace(
        f',\n  "boot": "{BOOT}"\n'.encode(), b"\n"
    )
    assert "out of order" in str(fault(first, Journal))


@pytest.mark.parametrize("indent", [-1, 0, 1, 8])
def test_white_space_is_free(indent: int) -> None:
    assert decode(msgspec.json.format(RUNTIME, indent=indent), RuntimeRecord, "") == decode(RUNTIME, RuntimeRecord, "")


@pytest.mark.case("T44")
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"\x00" * 300,
        b"null",
        b"[]",
        b"{}",
        b"\xef\xbb\xbf" + RUNTIME,
        RUNTIME.decode().encode("utf-16"),
        RUNTIME + RUNTIME,
        RUNTIME + b"x",
        b"[" * 60_000,
        b'{"format":' * 6_000,
        edit('"format": 1,', '"format": 1, "x": ' + "[" * 30_000 + "]" * 30_000 + ","),
        edit('"pid": 4711,', '"pid": 4711, "pid": 4711,'),
        edit('"format": 1,', '"format": 1, "format": 1,'),
        edit('"pid": 4711,', '"pid": 4711, "user": 0,'),
        edit('"pidfsInode": 98765', '"pidfsInode": null'),
        edit('"pid": 4711,\n    "startTime": 123456', '"startTime": 123456, "pid": 4711'),
        edit(ENDPOINT, "\\u002frun/nvx/alpha/control.sock"),
        edit(ENDPOINT, "\\/run"),
        edit(f'"{ENDPOINT}"', '""'),
        edit(f'"{ENDPOINT}"', "NaN"),
        edit(f'"{ENDPOINT}"', "Infinity"),
        edit(f'"{ENDPOINT}"', "7"),
        edit(f'"{ENDPOINT}"', '"\\ud800"'),
        RUNTIME.replace(b"/run", b"/\xff\xfe"),
        edit(LAUNCH_ID, LAUNCH_ID[1:]),
        edit(LAUNCH_ID, LAUNCH_ID + "0"),
        edit(LAUNCH_ID, LAUNCH_ID.upper()),
        edit(LAUNCH_ID, LAUNCH_ID + "\\n"),
        edit('"fe01"', '"FE01"'),
        edit('"fe01"', '"0x1"'),
        edit('"fe01"', "65025"),
        edit('"microvm-abi/2"', '""'),
        edit('"microvm-abi/2"', "2"),
        edit("123456", "-1"),
        edit("123456", str(2**63)),
        edit("123456", "9" * 5000),
        RUNTIME[: RUNTIME.index(b',\n  "identity"')] + b"}",
    ],
    ids=lambda raw: ascii(raw[:30]),
)
def test_a_damaged_record_is_reported(raw: bytes) -> None:
    assert fault(raw).detail == "record"


@pytest.mark.case("T07")
@pytest.mark.parametrize("pid", ["0", "-1", str(MAX_PID + 1), "1e3", "1.0", '"7"', "true", "null", "[7]", "1" * 400])
def test_a_number_that_is_no_process_is_malformed(pid: str) -> None:
    fault(edit("4711", pid))


@pytest.mark.case("T44")
@pytest.mark.spec("620.scope1.l", "620.acc.2")
@pytest.mark.parametrize("value", ["0", "2", "-1", "99"])
def test_another_format_is_refused_by_name(value: str) -> None:
    error = fault(edit('"format": 1', f'"format": {value}'))
    assert error.detail == "format"
    assert f"format {value}" in error.reason
    assert "stop every sandbox" in (error.hint or "")


@pytest.mark.spec("620.acc.2")
def test_a_record_of_the_store_before_this_one_is_refused_by_name() -> None:
    older = b'{"format": 1, "pid": 7, "start_time": 8, "control_endpoint": "/s/control.sock"}'
    error = fault(older)
    assert error.detail == "format"
    assert "earlier store" in error.reason
    assert "stop every sandbox" in (error.hint or "")


@pytest.mark.case("T44")
@pytest.mark.parametrize("value", ['"1"', "1.0", "true", "null", "1e0"])
def test_a_format_that_is_no_integer_is_malformed(value: str) -> None:
    fault(edit('"format": 1', f'"format": {value}'))


@pytest.mark.case("T44")
def test_a_record_is_bounded() -> None:
    assert decode(RUNTIME.ljust(MAX_RECORD), RuntimeRecord, "")
    assert "at most" in fault(RUNTIME.ljust(MAX_RECORD + 1)).reason
    fault(RUNTIME.ljust(1024 * 1024))
    fault(b"a" * (1024 * 1024))


@pytest.mark.case("T44")
@pytest.mark.parametrize("path", [*RUNTIMES, *JOURNALS], ids=lambda path: path.name)
def test_every_truncation_is_reported(path: Path) -> None:
    raw = path.read_bytes()
    for length in range(len(raw.rstrip())):
        fault(raw[:length], kind_of(path))


@pytest.mark.case("T44")
@pytest.mark.parametrize("path", [*RUNTIMES, *JOURNALS], ids=lambda path: path.name)
@pytest.mark.parametrize("mask", [0x01, 0x20, 0x80, 0xFF])
def test_a_flipped_byte_is_reported_or_another_valid_record(path: Path, mask: int) -> None:
    raw = path.read_bytes()
    original = decode(raw, kind_of(path), "")
    for index in range(len(raw)):
        flipped = raw[:index] + bytes([raw[index] ^ mask]) + raw[index + 1 :]
        record = reported_or_read(flipped, kind_of(path))
        if record is not None:
            assert record != original
            assert msgspec.json.encode(record) == msgspec.json.format(flipped, indent=-1)


@pytest.mark.case("T44")
@given(st.binary(max_size=400))
def test_noise_is_never_a_record(raw: bytes) -> None:
    fault(raw)
    fault(raw, Journal)


@pytest.mark.case("T44")
@given(st.data())
def test_any_edit_is_reported_or_another_valid_record(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(RUNTIME)))
    end = data.draw(st.integers(start, min(len(RUNTIME), start + 20)))
    patch = data.draw(st.one_of(st.binary(max_size=20), st.text('{}[]",:0123456789eE.-+ntrufals\\', max_size=20)))
    raw = RUNTIME[:start] + (patch.encode() if isinstance(patch, str) else patch) + RUNTIME[end:]
    record = reported_or_read(raw, RuntimeRecord)
    if record is not None:
        assert msgspec.json.encode(record) == msgspec.json.format(raw, indent=-1)


texts = st.text(min_size=1, max_size=60).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))
hexadecimals = st.integers(0, 2**64 - 1).map(lambda number: f"{number:x}")
counters = st.integers(1, 2**63 - 1)
processes = st.builds(
    ProcessIdentity,
    st.integers(1, 2**22),
    st.integers(0, 2**63 - 1),
    st.just(BOOT),
    st.none() | counters,
    st.none() | counters,
)
launch_ids = st.binary(min_size=16, max_size=16).map(bytes.hex)
logs = st.builds(FileId, hexadecimals, hexadecimals)
identities = st.builds(RuntimeIdentity, texts, texts, texts, texts, texts)


@given(launch_ids, st.none() | processes, processes, texts, logs, identities)
def test_what_is_written_is_read(
    launch_id: str,
    early: ProcessIdentity | None,
    process: ProcessIdentity,
    endpoint: str,
    log: FileId,
    identity: RuntimeIdentity,
) -> None:
    journal = Journal(format=FORMAT, launch_id=launch_id, process=early, endpoint=endpoint, log=log)
    record = RuntimeRecord(
        format=FORMAT, launch_id=launch_id, process=process, endpoint=endpoint, log=log, identity=identity
    )
    for written in (journal, record):
        text = encode(written, "x")
        assert decode(text, type(written), "x") == written
        assert text.endswith(b"\n}\n")


@pytest.mark.parametrize(
    "record",
    [
        Journal(format=FORMAT, launch_id="x", endpoint=ENDPOINT, log=LOG),
        Journal(format=FORMAT, launch_id=LAUNCH_ID, endpoint="", log=LOG),
        Journal(format=FORMAT, launch_id=LAUNCH_ID, endpoint="\udcff", log=LOG),
        Journal(format=FORMAT, launch_id=LAUNCH_ID, endpoint=ENDPOINT, log=FileId("-1", "0")),
        Journal(format=FORMAT, launch_id=LAUNCH_ID, process=ProcessIdentity(0, 1, BOOT), endpoint=ENDPOINT, log=LOG),
    ],
)
def test_what_could_not_be_read_is_not_written(record: Journal) -> None:
    with pytest.raises(Malformed):
        encode(record, "launch.json")


@pytest.mark.spec("620.scope3.m")
@pytest.mark.parametrize("part", list(IdentityPart))
def test_each_part_of_the_identity_is_told_apart(part: IdentityPart) -> None:
    changes = {name: "other" for name, p in zip(IDENTITY.__struct_fields__, IdentityPart, strict=True) if p == part}
    other = msgspec.structs.replace(IDENTITY, **changes)
    assert decode(RUNTIME, RuntimeRecord, "").check_identity(other) == (part,)


@pytest.mark.spec("620.scope3.m")
def test_differences_are_named_in_their_fixed_order() -> None:
    record = decode(RUNTIME, RuntimeRecord, "")
    assert record.check_identity(IDENTITY) == ()
    assert record.check_identity(RuntimeIdentity("a", "b", "c", "d", "e")) == tuple(IdentityPart)


@pytest.mark.spec("656.reattach.a")
@pytest.mark.parametrize("value", ["", "\udcff", "x" * 4097, None, 7])
def test_a_runtime_identity_is_checked_before_it_is_used(value: object) -> None:
    IDENTITY.validate()
    broken = msgspec.structs.replace(IDENTITY, kernel=value)
    with pytest.raises(Malformed, match="kernel"):
        broken.validate()
