"""A plan is typed, refuses what it doesn't know, and keeps its one JSON form."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.images import EROFS_UUID
from nvx_ref.errors import Malformed, NvxError, Refused
from nvx_ref.images import DistroBinding, ImageFormat, ScratchBinding
from nvx_ref.plan import (
    Blocks,
    ColdPlan,
    Guest,
    GuestKind,
    Lifecycle,
    Limits,
    Machine,
    Upper,
    Workload,
    decode_plan,
    encode_plan,
    json_schema,
)

ROOT = Path(__file__).resolve().parents[2]
WORDS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=12)
PLANS = st.builds(
    ColdPlan,
    version=st.just(1),
    blocks=st.builds(
        Blocks,
        format=st.sampled_from(ImageFormat),
        identity=st.one_of(st.none(), st.uuids().map(str)),
        upper=st.sampled_from(Upper),
    ),
    guest=st.builds(
        Guest,
        kind=st.sampled_from([GuestKind.LAYERED, GuestKind.ADAPTER]),
        entrypoint=WORDS.map("/opt/{}".format),
        arguments=st.lists(WORDS, max_size=3).map(tuple),
        hostname=st.from_regex(r"[a-z0-9]([a-z0-9-]{0,9}[a-z0-9])?", fullmatch=True),
        extra=st.lists(WORDS, max_size=3).map(" ".join),
    ),
    workload=st.builds(Workload, uid=st.integers(1, 2**32 - 1), gid=st.integers(1, 2**32 - 1)),
    machine=st.builds(Machine, memory_mib=st.integers(1, 4096), processors=st.sampled_from([1, 2, 4, 8])),
    limits=st.builds(Limits, memory_max=st.one_of(st.none(), st.integers(1, 2**63 - 1))),
)


@pytest.mark.spec("622.scope1.e")
@pytest.mark.spec("622.scope1.a")
@settings(max_examples=60, deadline=None)
@given(PLANS)
def test_a_plan_survives_its_json(plan: ColdPlan) -> None:
    raw = encode_plan(plan)
    assert decode_plan(raw) == plan
    assert encode_plan(decode_plan(raw)) == raw


def test_a_plan_written_with_its_least_fields_is_read(plan: ColdPlan) -> None:
    raw = json.dumps({"version": 1, "blocks": {"format": "erofs", "identity": EROFS_UUID}})
    assert decode_plan(raw.encode()) == plan


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), 1),
        (("version",), 2),
        (("version",), True),
        (("version",), 1.0),
        (("unknown",), 1),
        (("blocks", "partition"), EROFS_UUID),
        (("blocks", "format"), "vhd"),
        (("blocks", "upper"), "tmpfs"),
        (("guest", "kind"), "other"),
        (("guest", "arguments"), "text"),
        (("workload", "uid"), 0),
        (("workload", "gid"), 0),
        (("workload", "uid"), 2**32),
        (("workload", "uid"), True),
        (("machine", "memoryMib"), 0),
        (("machine", "memory_mib"), 256),
        (("machine", "processors"), 3),
        (("limits", "pidsMax"), 0),
        (("lifecycle",), "always"),
    ],
)
def test_a_plan_of_another_shape_is_malformed(plan: ColdPlan, path: tuple[str, ...], value: object) -> None:
    tree = json.loads(encode_plan(plan))
    place = tree
    for key in path[:-1]:
        place = place[key]
    if path:
        place[path[-1]] = value
    with pytest.raises(Malformed):
        decode_plan(json.dumps(tree if path else value).encode())


@pytest.mark.spec("622.scope1.j")
@pytest.mark.parametrize("numbers", [(0, 1), (1, 0), (-1, 1), (2**32, 1)])
def test_root_is_not_expressible(numbers: tuple[int, int]) -> None:
    with pytest.raises(Refused, match="outside 1 to"):
        Workload(uid=numbers[0], gid=numbers[1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Guest(entrypoint="/lib/systemd/systemd"),
        lambda: Guest(entrypoint="bin/sh"),
        lambda: Guest(entrypoint="/bin/s h"),
        lambda: Guest(entrypoint=""),
        lambda: Guest(arguments=("",)),
        lambda: Guest(arguments=("two words",)),
        lambda: Guest(arguments=("no\u2003break",)),
        lambda: Guest(create_account=True),
        lambda: Guest(hostname=""),
        lambda: Guest(hostname="-a"),
        lambda: Guest(hostname="A"),
        lambda: Guest(hostname="a" * 64),
        lambda: Guest(hostname="a\n"),
        lambda: Machine(console="console"),
        lambda: Machine(console="listen="),
        lambda: Machine(cpu_profile="../x"),
        lambda: Machine(auth_timeout_ms=0),
        lambda: Machine(auth_timeout_ms=60_001),
        lambda: Machine(memory_mib=-1),
        lambda: Limits(memory_max=0),
        lambda: Limits(pids_max=-1),
        lambda: ColdPlan(version=1),
        lambda: ColdPlan(version=1, guest=Guest(kind=GuestKind.DIRECT), blocks=Blocks(format=ImageFormat.GPT)),
        lambda: ColdPlan(version=1, blocks=Blocks(format=ImageFormat.GPT), workload=None),
    ],
)
def test_values_out_of_their_rules_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(Refused):
        make()


def test_uuids_are_kept_in_lower_case() -> None:
    with pytest.raises(Malformed):
        Blocks(format=ImageFormat.EROFS, identity="AAAAAAAA-1111-1111-1111-111111111111")


@pytest.mark.spec("622.pr7")
@pytest.mark.spec("622.scope1.i")
def test_an_adapter_may_leave_the_identity_to_its_guest() -> None:
    plan = ColdPlan(version=1, blocks=Blocks(format=ImageFormat.GPT), workload=None, lifecycle=Lifecycle.ONE_SHOT)
    assert decode_plan(encode_plan(plan)) == plan


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_plans_give_typed_errors(raw: bytes) -> None:
    with suppress(NvxError):
        decode_plan(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=80, deadline=None)
@given(
    section=st.sampled_from(["blocks", "guest", "workload", "machine", "limits", "lifecycle", "exports", "network"]),
    value=JSON,
)
def test_plans_with_an_arbitrary_section_give_typed_errors(section: str, value: object) -> None:
    tree: dict[str, object] = {"version": 1, "blocks": {"format": "erofs"}, section: value}
    with suppress(NvxError):
        decode_plan(json.dumps(tree).encode("utf-8", "surrogatepass"))


def test_the_schema_is_one_text_and_refuses_unknown_fields() -> None:
    schema = json.loads(json_schema())
    assert schema["$defs"]["ColdPlan"]["additionalProperties"] is False
    assert schema["$defs"]["Workload"]["properties"]["uid"]["minimum"] == 1
    assert json_schema() == json_schema()
    for kind in (DistroBinding, ScratchBinding):
        assert json.loads(json_schema(kind))["$defs"]


def test_the_published_schemas_are_the_codes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "ci" / "write_schemas.py", tmp_path], check=True, capture_output=True)
    published = {path.name: path.read_bytes() for path in (ROOT / "docs" / "schema").iterdir()}
    assert published == {path.name: path.read_bytes() for path in tmp_path.iterdir()}, "run ci/write_schemas.py"


def test_a_plan_holds_nothing_that_dies_with_the_process(plan: ColdPlan) -> None:
    assert b"/proc/" not in encode_plan(plan)
    assert msgspec.structs.fields(ColdPlan)
