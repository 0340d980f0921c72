"""Mappings of direct and adapter guests: exports, hidden parents, the ordered table, and what may not nest."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvx_ref.errors import NotFound, NvxError, Refused
from nvx_ref.plan import (
    Access,
    ColdPlan,
    ExportPlan,
    Guest,
    GuestKind,
    MapAction,
    MappingPolicy,
    Protected,
    caller_text,
    check_exports,
    decode_plan,
    encode_plan,
    plan_mappings,
)
from nvx_ref.plan.exports import export_options
from tests.plan.conftest import in_mount_namespace

RULE = "read-only-inside-read-write"
CODE = "from nvx_ref.plan import plan_mappings; plan_mappings(ARGUMENT)"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a/b/c", "a/d", "e", "f"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("a/file", "a/b/file", "f/one", "f/two", "f/sibling"):
        (tmp_path / name).write_text(name)
    return tmp_path


def policy(tree: Path, ro: str = "", rw: str = "", denied: str = "") -> MappingPolicy:
    lists = [tuple(str(tree / name) for name in names.split()) for names in (ro, rw, denied)]
    return MappingPolicy(readonly_paths=lists[0], readwrite_paths=lists[1], denied_paths=lists[2])


def planned(tree: Path, ro: str = "", rw: str = "", denied: str = "") -> ExportPlan:
    exports = plan_mappings(policy(tree, ro, rw, denied))
    assert exports is not None
    return exports


def table(tree: Path, exports: ExportPlan) -> list[tuple[str, str, bool]]:
    return [(one.source, one.target.removeprefix(f"{tree}/"), one.read_only) for one in exports.mappings]


def refusal(tree: Path, ro: str = "", rw: str = "", denied: str = "") -> str | None:
    with pytest.raises(NvxError) as caught:
        plan_mappings(policy(tree, ro, rw, denied))
    return caught.value.detail


@pytest.mark.spec("622.acc.10")
def test_no_mapping_is_no_export_no_token_and_no_table() -> None:
    assert plan_mappings(MappingPolicy()) is None
    assert plan_mappings(MappingPolicy(denied_paths=("/srv",))) is None
    assert "nvx_maps" not in caller_text(ColdPlan(version=1, guest=Guest(kind=GuestKind.DIRECT)))


@pytest.mark.spec("622.scope1.c")
def test_outermost_directories_are_exported_and_outer_mappings_come_first(tree: Path) -> None:
    exports = planned(tree, ro="e a", rw="a/b/c a/d")
    assert export_options(exports) == [
        *("--mount-aggregate", "/run/nvx/hostfs/root"),
        *("--mount-child", f"0,{tree}/a,rw", "--mount-child", f"1,{tree}/e,ro"),
        *("--mount-write", f"{tree}/a/b/c", "--mount-write", f"{tree}/a/d"),
    ]
    assert table(tree, exports) == [
        ("0", "a", True),
        ("0/b/c", "a/b/c", False),
        ("0/d", "a/d", False),
        ("1", "e", True),
    ]


def test_a_sibling_whose_name_begins_with_a_mapped_one_is_none_of_its_own(tree: Path) -> None:
    """By text `a-b` stands between `a` and `a/b`; by components nothing does."""
    (tree / "a-b").mkdir()
    exports = planned(tree, ro="a a-b a/b a/d")
    assert [child.host for child in exports.children] == [f"{tree}/a", f"{tree}/a-b"]
    sources = [("0", "a", True), ("0/b", "a/b", True), ("0/d", "a/d", True), ("1", "a-b", True)]
    assert table(tree, exports) == sources


def test_a_files_parent_is_exported_hidden_but_for_the_file(tree: Path) -> None:
    exports = planned(tree, ro="f/one", rw="f/two")
    assert export_options(exports)[2:] == [
        *("--mount-child", f"0,{tree}/f,rw", "--mount-deny", f"{tree}/f"),
        *("--mount-allow", f"{tree}/f/one", "--mount-allow", f"{tree}/f/two", "--mount-write", f"{tree}/f/two"),
    ]
    assert table(tree, exports) == [("0/one", "f/one", True), ("0/two", "f/two", False)]


def test_a_file_inside_a_mapped_directory_needs_no_parent(tree: Path) -> None:
    exports = planned(tree, ro="a", rw="a/b/file")
    assert [child.host for child in exports.children] == [f"{tree}/a"]
    assert exports.children[0].denied == ()


def test_a_common_parent_is_never_exported_for_directories(tree: Path) -> None:
    exports = planned(tree, ro="a/b a/d")
    assert [child.host for child in exports.children] == [f"{tree}/a/b", f"{tree}/a/d"]


def test_a_directory_beside_a_mapped_file_is_shown_within_its_parent(tree: Path) -> None:
    exports = planned(tree, ro="a/file a/b")
    (only,) = exports.children
    assert (only.host, only.denied, only.allowed) == (
        f"{tree}/a",
        (f"{tree}/a",),
        (f"{tree}/a/b", f"{tree}/a/file"),
    )


def test_denied_paths_hide_what_is_mapped_and_no_more(tree: Path) -> None:
    exports = planned(tree, ro="a f/one", denied="a/b a/b/c e f/none")
    assert export_options(exports)[-6:] == [
        *("--mount-deny", f"{tree}/a/b", "--mount-deny", f"{tree}/f", "--mount-allow", f"{tree}/f/one")
    ]


@pytest.mark.parametrize("denied", ["a/none", "a/b/none/x"])
def test_a_denied_path_that_is_missing_inside_a_mapped_one_is_refused(tree: Path, denied: str) -> None:
    with pytest.raises(NotFound):
        plan_mappings(policy(tree, ro="a", denied=denied))


@pytest.mark.parametrize("denied", ["a/b", "a", ""])
def test_a_denied_path_that_is_or_holds_a_mapped_one_is_refused(tree: Path, denied: str) -> None:
    with pytest.raises(Refused) as caught:
        plan_mappings(MappingPolicy(readonly_paths=(f"{tree}/a/b",), denied_paths=(str(tree / denied),)))
    assert caught.value.detail == "denied"


def test_the_same_object_twice_keeps_the_stricter_access(tree: Path) -> None:
    (tree / "link").symlink_to("a")
    exports = planned(tree, ro="link a", rw="a link")
    assert table(tree, exports) == [("0", "a", True)]


@pytest.mark.parametrize("path", ["/", "/usr", "/usr/lib", "/etc/passwd", "/proc/self", "/run"])
def test_what_the_guest_has_itself_and_whole_volumes_are_refused(path: str) -> None:
    with pytest.raises(Refused):
        plan_mappings(MappingPolicy(readonly_paths=(path,)))


@pytest.mark.parametrize("path", ["relative", "", "/a\0b", "/\udcff"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises((Refused, NotFound)):
        plan_mappings(MappingPolicy(readwrite_paths=(path,)))


# Nesting


@pytest.mark.spec("622.scope4.d")
@pytest.mark.spec("622.acc.18")
@pytest.mark.parametrize("inner", ["a/b", "a/b/c", "a/file"])
def test_read_only_inside_read_write_is_refused(tree: Path, inner: str) -> None:
    assert refusal(tree, ro=inner, rw="a") == RULE


@pytest.mark.spec("622.scope4.e")
@pytest.mark.parametrize("inner", ["a/b", "a/b/c", "a/file"])
def test_read_write_inside_read_only_stays_valid(tree: Path, inner: str) -> None:
    exports = planned(tree, ro="a", rw=inner)
    assert table(tree, exports) == [("0", "a", True), (f"0/{inner[2:]}", inner, False)]


def test_deeper_nesting_of_either_kind_is_seen(tree: Path) -> None:
    assert refusal(tree, ro="a a/b/c", rw="a/b") == RULE


def test_read_only_inside_read_write_is_refused_through_a_link(tree: Path) -> None:
    (tree / "link").symlink_to("a/b")
    assert refusal(tree, ro="link", rw="a") == RULE


@pytest.mark.parametrize(
    ("source", "point"), [("a/b", "e"), ("a", "e"), ("a/b/c", "e/deep"), ("a/file", "f/one"), ("a/b", "e/deep")]
)
def test_read_only_inside_read_write_is_refused_through_a_mount(tree: Path, source: str, point: str) -> None:
    (tree / "e/deep").mkdir()
    alias = "f/one" if point == "f/one" else "e"
    assert in_mount_namespace([(tree / source, tree / point)], CODE, policy(tree, ro=alias, rw="a")) == RULE


def test_a_hard_link_to_a_writable_file_is_no_read_only_file(tree: Path) -> None:
    os.link(tree / "a/file", tree / "e/file")
    assert refusal(tree, ro="e/file", rw="a/file") == RULE


def test_a_mount_below_a_valid_nesting_changes_nothing(tree: Path) -> None:
    assert in_mount_namespace([(tree / "e", tree / "a/b/c")], CODE, policy(tree, ro="a", rw="a/b/file")) is None


def test_two_read_only_names_of_the_same_files_are_refused(tree: Path) -> None:
    assert in_mount_namespace([(tree / "a/b", tree / "e")], CODE, policy(tree, ro="a e")) == "overlap"


# Limits


@pytest.mark.parametrize(("count", "detail"), [(256, None), (257, "limit")])
def test_256_exports_pass_and_257_don_t(tmp_path: Path, count: int, detail: str | None) -> None:
    for number in range(count):
        (tmp_path / f"{number}").mkdir()
    wanted = policy(tmp_path, ro=" ".join(map(str, range(count))))
    if detail is None:
        exports = plan_mappings(wanted)
        assert exports is not None
        assert len(exports.children) == count
        return
    with pytest.raises(Refused) as caught:
        plan_mappings(wanted)
    assert caught.value.detail == detail


@pytest.mark.parametrize(("count", "detail"), [(4096, None), (4097, "limit")])
def test_4096_mappings_pass_and_4097_don_t(tmp_path: Path, count: int, detail: str | None) -> None:
    for number in range(count - 1):
        (tmp_path / f"{number}").mkdir()
    wanted = MappingPolicy(readonly_paths=(str(tmp_path), *(str(tmp_path / f"{n}") for n in range(count - 1))))
    if detail is None:
        exports = plan_mappings(wanted)
        assert exports is not None
        plan = ColdPlan(version=1, guest=Guest(kind=GuestKind.DIRECT), exports=exports)
        assert "nvx_maps=4096" in caller_text(plan).split()
        assert decode_plan(encode_plan(plan)) == plan
        return
    with pytest.raises(Refused) as caught:
        plan_mappings(wanted)
    assert caught.value.detail == detail


def test_129_policy_paths_of_a_kind_are_refused(tmp_path: Path) -> None:
    for number in range(129):
        (tmp_path / f"{number}").mkdir()
    names = [f"{tmp_path}/{number}" for number in range(129)]
    assert plan_mappings(MappingPolicy(readonly_paths=(str(tmp_path),), readwrite_paths=tuple(names[:128])))
    with pytest.raises(Refused) as caught:
        plan_mappings(MappingPolicy(readonly_paths=(str(tmp_path),), readwrite_paths=tuple(names)))
    assert caught.value.detail == "limit"


# Protection and pins


def test_a_mapping_that_reaches_a_protected_path_is_refused(tree: Path) -> None:
    for inner in ("a/b", "a/file", "a"):
        with pytest.raises(Refused) as caught:
            plan_mappings(policy(tree, ro="a"), protected=[Protected(str(tree / inner), "the scratch")])
        assert caught.value.detail == "protected"


def test_a_hidden_parent_reaches_nothing(tree: Path) -> None:
    assert plan_mappings(policy(tree, ro="f/one"), protected=[Protected(str(tree / "f/two"), "the scratch")])
    with pytest.raises(Refused):
        plan_mappings(policy(tree, ro="f/one"), protected=[Protected(str(tree / "f/one"), "the scratch")])


def test_what_is_mapped_or_denied_inside_read_write_is_pinned(tree: Path) -> None:
    exports = planned(tree, ro="e", rw="a a/b", denied="a/d")
    assert [pin.path for pin in exports.pins] == [f"{tree}/a/b", f"{tree}/a/d"]
    check_exports(exports)
    (tree / "a/d").rename(tree / "a/x")
    (tree / "a/d").mkdir()
    with pytest.raises(Refused) as caught:
        check_exports(exports)
    assert caught.value.detail == "pin"


def test_an_export_root_that_is_gone_or_a_link_is_refused_at_start(tree: Path) -> None:
    exports = planned(tree, ro="e")
    (tree / "e").rename(tree / "moved")
    with pytest.raises(NotFound):
        check_exports(exports)
    (tree / "e").symlink_to("moved")
    with pytest.raises(Refused):
        check_exports(exports)


# Plans


def test_mappings_are_for_guests_that_take_them(tree: Path, plan: ColdPlan) -> None:
    exports = planned(tree, ro="a", rw="a/b")
    with pytest.raises(Refused):
        msgspec.structs.replace(plan, exports=exports)
    adapter = msgspec.structs.replace(plan, guest=Guest(kind=GuestKind.ADAPTER), exports=exports)
    assert caller_text(adapter).endswith(" nvx_maps=2")
    assert decode_plan(encode_plan(adapter)) == adapter
    assert exports.mappings[1] == MapAction(source="0/b", target=f"{tree}/a/b", read_only=False)


NAMES = ("a", "a/b", "a/b/c", "a/d", "a/file", "a/b/file", "e", "f", "f/one", "f/two")


@settings(max_examples=60, deadline=None)
@given(
    ro=st.sets(st.sampled_from(NAMES), max_size=4),
    rw=st.sets(st.sampled_from(NAMES), max_size=3),
    denied=st.sets(st.sampled_from(NAMES), max_size=3),
)
def test_every_plan_shows_what_was_mapped_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, ro: set[str], rw: set[str], denied: set[str]
) -> None:
    root = tmp_path_factory.getbasetemp() / "mapped"
    for name in NAMES:
        path = root / name
        if name.rpartition("/")[2] in {"file", "one", "two"}:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        else:
            path.mkdir(parents=True, exist_ok=True)
    with suppress(Refused):
        exports = plan_mappings(policy(root, " ".join(ro), " ".join(rw), " ".join(denied)))
        for name in NAMES if exports else ():
            above = [str(root / name), *map(str, (root / name).parents)]
            mapped = any(path in {str(root / one) for one in ro | rw} for path in above)
            hidden = any(path in {str(root / one) for one in denied} for path in above)
            writable = any(path in {str(root / one) for one in rw - ro} for path in above)
            assert visible(exports, above) == (mapped and not hidden)
            assert may_write(exports, above) == (writable and not hidden)


def visible(exports: ExportPlan, above: list[str]) -> bool:
    """What OpenVMM makes of the lists: the nearest entry decides."""
    for child in exports.children:
        if child.host in above:
            decided = [(path in child.allowed) for path in above if path in (*child.denied, *child.allowed)]
            return decided[0] if decided else True
    return False


def may_write(exports: ExportPlan, above: list[str]) -> bool:
    for child in exports.children:
        if child.host in above and child.access is Access.READ_WRITE and visible(exports, above):
            return not child.writable or any(path in child.writable for path in above)
    return False


def test_a_table_is_planned_without_changing_anything(tree: Path) -> None:
    before = {str(path): os.lstat(path).st_mtime_ns for path in tree.rglob("*")}
    planned(tree, ro="a", rw="a/b", denied="a/b/c")
    assert {str(path): os.lstat(path).st_mtime_ns for path in tree.rglob("*")} == before
