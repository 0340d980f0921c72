"""Shares of a layered guest: targets, host paths, policy paths, limits, and what they may not reach."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from pathlib import Path

import msgspec
import pytest

from nvx_ref.errors import Malformed, NotFound, NvxError, Refused
from nvx_ref.plan import (
    Access,
    ColdPlan,
    ExportChild,
    ExportPlan,
    Owner,
    Protected,
    Share,
    caller_text,
    check_exports,
    decode_plan,
    encode_plan,
    explain,
    parse_share,
    plan_shares,
)
from nvx_ref.plan.exports import export_fragment, export_options
from tests.plan.conftest import in_mount_namespace

RW = Access.READ_WRITE


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("one/a/b/c", "one/d", "two", "three"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "one/file").write_text("x")
    return tmp_path


def planned(*shares: Share) -> ExportPlan:
    plan = plan_shares(shares)
    assert plan is not None
    return plan


def refusal(*shares: Share, protected: tuple[Protected, ...] = ()) -> str | None:
    with pytest.raises(NvxError) as caught:
        plan_shares(shares, protected=protected)
    return caught.value.detail


def name(index: int, target: str) -> str:
    return f"{index}-{hashlib.sha256(target.encode()).hexdigest()[:32]}"


def test_no_share_is_no_export() -> None:
    assert plan_shares([]) is None


@pytest.mark.parametrize(("text", "access"), [("/g,/h", "ro"), ("/g,/h,ro", "ro"), ("/g,/h,rw", "rw")])
def test_a_share_is_read_from_its_option(text: str, access: str) -> None:
    assert parse_share(text) == Share(target="/g", host="/h", access=Access(access))


@pytest.mark.parametrize("text", ["", "/g", "/g,", ",/h", "/g,/h,", "/g,/h,x", "/g,/h,ro,rw"])
def test_an_option_that_is_no_share_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        parse_share(text)


def test_one_share_is_a_mount_of_its_own(tree: Path, plan: ColdPlan) -> None:
    exports = planned(Share(target="/data", host=str(tree / "one")))
    assert export_options(exports) == ["--mount", f"/data,{tree}/one,ro"]
    assert export_fragment(exports) == " virtfs_dir=/data virtfs_tag=microvm virtfs_mode=ro"
    assert caller_text(msgspec.structs.replace(plan, exports=exports)) == caller_text(plan)


def test_several_shares_are_children_with_tokens(tree: Path, plan: ColdPlan) -> None:
    exports = planned(
        Share(target="/data", host=str(tree / "one"), access=RW, denied=(str(tree / "one/a"),)),
        Share(target="/f", host=str(tree / "two")),
    )
    first, second = name(0, "/data"), name(1, "/f")
    assert export_options(exports) == [
        *("--mount-aggregate", "/run/nvx/shares"),
        *("--mount-child", f"{first},{tree}/one,rw", "--mount-child", f"{second},{tree}/two,ro"),
        *("--mount-deny", f"{tree}/one/a"),
    ]
    sharing = msgspec.structs.replace(plan, exports=exports)
    text = caller_text(sharing)
    assert text.endswith(f" nvx_share={first},/data,rw nvx_share={second},/f,ro")
    fragment = " virtfs_dir=/run/nvx/shares virtfs_tag=microvm virtfs_mode=rw virtfs_aggregate=1"
    assert export_fragment(exports) == fragment
    assert explain(sharing).used == len(text) + len(fragment) + 1
    assert decode_plan(encode_plan(sharing)) == sharing


def test_a_shared_file_is_a_child(tree: Path) -> None:
    exports = planned(Share(target="/f", host=str(tree / "one/file")))
    assert exports.aggregate
    assert exports.children[0].name == name(0, "/f")


def test_policy_paths_come_by_kind(tree: Path) -> None:
    one = str(tree / "one")
    exports = planned(
        Share(
            target="/x", host=one, access=RW, denied=(f"{one}/a",), allowed=(f"{one}/a/b",), writable=(f"{one}/a/b/c",)
        )
    )
    assert export_options(exports)[2:] == [
        *("--mount-deny", f"{one}/a", "--mount-allow", f"{one}/a/b", "--mount-write", f"{one}/a/b/c")
    ]


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/etc",
        "/proc",
        "/proc/x",
        "/sys/x",
        "/dev",
        "/.nvx-agent/x",
        "data",
        "/data/",
        "/a//b",
        "/a/./b",
        "/a/../b",
        "/a b",
        "/a\u2003b",
        "/a\\b",
        "/a=b",
        "/a,b",
        "/a\0b",
        "/\udcff",
        "/" + "x" * 4096,
    ],
)
def test_a_target_that_the_guest_can_t_have_is_refused(tree: Path, target: str) -> None:
    assert refusal(Share(target=target, host=str(tree / "one"))) == "target"


def test_targets_below_etc_are_free(tree: Path) -> None:
    assert planned(Share(target="/etc/x", host=str(tree / "one")))


@pytest.mark.parametrize(("first", "second"), [("/a", "/a"), ("/a", "/a/b"), ("/a/b", "/a")])
def test_overlapping_targets_are_refused(tree: Path, first: str, second: str) -> None:
    shares = Share(target=first, host=str(tree / "one")), Share(target=second, host=str(tree / "two"))
    assert refusal(*shares) == "target"
    assert planned(shares[0], Share(target="/ab", host=str(tree / "two")))


@pytest.mark.parametrize("host", ["one", "", "/x,y", "/a/../b", "/a/", "/a\0b", "//a"])
def test_a_host_path_that_openvmm_wouldn_t_take_is_refused(host: str) -> None:
    assert refusal(Share(target="/a", host=host)) == "host-path"


def test_links_sockets_and_missing_host_paths_are_refused(tree: Path) -> None:
    (tree / "link").symlink_to("one")
    assert refusal(Share(target="/a", host=str(tree / "link"))) == "host-path"
    assert refusal(Share(target="/a", host=str(tree / "link/a"))) == "host-path"
    os.mkfifo(tree / "fifo")
    assert refusal(Share(target="/a", host=str(tree / "fifo"))) == "host-path"
    with pytest.raises(NotFound):
        plan_shares([Share(target="/a", host=str(tree / "none"))])


@pytest.mark.parametrize(("first", "second"), [("one", "one"), ("one", "one/a"), ("one/a", "one"), ("one", "one/file")])
def test_overlapping_host_paths_are_refused(tree: Path, first: str, second: str) -> None:
    shares = Share(target="/a", host=str(tree / first)), Share(target="/b", host=str(tree / second))
    assert refusal(*shares) == "overlap"


@pytest.mark.parametrize("inner", ["one", "one/a"])
def test_host_paths_that_overlap_through_a_bind_mount_are_refused(tree: Path, inner: str) -> None:
    shares = [Share(target="/a", host=str(tree / "one")), Share(target="/b", host=str(tree / "two"))]
    code = "from nvx_ref.plan import plan_shares, Share; plan_shares(ARGUMENT)"
    assert in_mount_namespace([(tree / inner, tree / "two")], code, shares) == "overlap"
    assert in_mount_namespace([(tree / "three", tree / "two")], code, shares) is None


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root may change its root")
@pytest.mark.parametrize(
    ("first", "second", "detail"),
    [
        *((one, two, "overlap") for one, two in (("one", "one/a"), ("bound", "one/a"), ("one/a", "bound"))),
        *((one, two, "overlap") for one, two in (("three", "inner"), ("inner", "three"), ("three", "inner/deep"))),
        *((one, two, None) for one, two in (("one", "two"), ("three/other", "inner"), ("two", "inner"))),
    ],
)
def test_a_root_that_no_mount_covers_is_no_obstacle(tree: Path, first: str, second: str, detail: str | None) -> None:
    """`bound` is `one`, and `inner` is a directory in `three`, which has no identity in common with its outer one."""
    for name in ("proc", "bound", "inner", "three/other", "three/in/deep"):
        (tree / name).mkdir(parents=True)
    code = f"import hashlib, os; from nvx_ref.plan import plan_shares; os.chroot({str(tree)!r}); plan_shares(ARGUMENT)"
    shares = [Share(target="/a", host=f"/{first}"), Share(target="/b", host=f"/{second}")]
    binds = [(Path("/proc"), tree / "proc"), (tree / "one", tree / "bound"), (tree / "three/in", tree / "inner")]
    assert in_mount_namespace(binds, code, shares) == detail


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"denied": ["{}/a", "{}/a/b"]}, "policy"),
        ({"denied": ["{}"]}, "policy"),
        ({"allowed": ["{}/a"]}, "policy"),
        ({"denied": ["{}/a"], "allowed": ["{}/a"]}, "policy"),
        ({"denied": ["{}/a"], "allowed": ["{}"]}, "policy"),
        ({"denied": ["{}/a", "{}/a"]}, "policy"),
        ({"denied": ["/usr"]}, "policy"),
        ({"denied": ["a"]}, "host-path"),
        ({"denied": ["{}/none"]}, "host-path"),
        ({"writable": ["{}/a"]}, "policy"),
        ({"access": "rw", "writable": ["{}"]}, "policy"),
        ({"access": "rw", "writable": ["{}/a", "{}/a/b"]}, "policy"),
        ({"access": "rw", "denied": ["{}/a"], "writable": ["{}/a"]}, "policy"),
        ({"access": "rw", "denied": ["{}/a"], "writable": ["{}/a/b"]}, "policy"),
    ],
)
def test_policy_paths_that_openvmm_wouldn_t_take_are_refused(
    tree: Path, change: dict[str, object], detail: str
) -> None:
    one = str(tree / "one")
    filled = {
        key: [text.format(one) for text in value] if isinstance(value, list) else value for key, value in change.items()
    }
    share = msgspec.convert({"target": "/x", "host": one, **filled}, Share)
    assert refusal(share) == detail


@pytest.mark.parametrize("odd", ["a b", "a:b", "a\\b"])
def test_a_policy_path_with_a_character_that_ends_a_list_is_refused(tree: Path, odd: str) -> None:
    (tree / "one" / odd).mkdir()
    assert refusal(Share(target="/x", host=str(tree / "one"), denied=(str(tree / "one" / odd),))) == "policy"


def test_a_socket_may_be_hidden(tree: Path) -> None:
    path = tree / "one/s"
    with socket.socket(socket.AF_UNIX) as server:
        previous = Path.cwd()
        os.chdir(tree / "one")
        try:
            server.bind("s")
        finally:
            os.chdir(previous)
        assert planned(Share(target="/x", host=str(tree / "one"), denied=(str(path),)))


def test_owners_are_one_and_not_root(tree: Path) -> None:
    caller = Share(target="/a", host=str(tree / "one"), owner=Owner.CALLER)
    assert refusal(caller, Share(target="/b", host=str(tree / "two"))) == "owner"
    if os.geteuid() == 0:
        for owner in ((0, 0), (0, 1000), (1000, 0)):
            os.chown(tree / "one", *owner)
            assert refusal(caller) == "owner"
        os.chown(tree / "one", 1000, 1000)
    assert export_options(planned(caller))[-2:] == ["--mount-owner", "caller"]


# Limits


def child(index: int, **changes: object) -> dict[str, object]:
    return {"name": str(index), "host": f"/r{index}", "access": "ro", "target": f"/t{index}", **changes}


def export(children: list[dict[str, object]], **changes: object) -> ExportPlan:
    return msgspec.convert({"target": "/run/x", "aggregate": True, "children": children, **changes}, ExportPlan)


def test_256_children_pass_and_257_don_t() -> None:
    assert export([child(n) for n in range(256)])
    with pytest.raises(Refused) as caught:
        export([child(n) for n in range(257)])
    assert caught.value.detail == "limit"


def test_128_policy_paths_pass_and_129_don_t() -> None:
    assert export([child(0, denied=[f"/r0/{n}" for n in range(128)])])
    with pytest.raises(Refused) as caught:
        export([child(0, denied=[f"/r0/{n}" for n in range(129)])])
    assert caught.value.detail == "limit"


def full(index: int, size: int) -> list[str]:
    """Paths whose parts below their child are ``size`` bytes together."""
    lengths = [128] * (size // 128) + ([size % 128] if size % 128 else [])
    return [f"/r{index}/{place:03}{'x' * (length - 3)}" for place, length in enumerate(lengths)]


def test_16_kib_of_a_list_pass_and_one_byte_more_doesn_t() -> None:
    paths = full(0, 16 << 10)
    assert export([child(0, denied=paths)])
    with pytest.raises(Refused) as caught:
        export([child(0, denied=[*paths[:-1], paths[-1] + "x"])])
    assert caught.value.detail == "limit"


def test_128_kib_of_all_lists_pass_and_one_byte_more_doesn_t() -> None:
    children = [child(n, denied=full(n, 16 << 10)) for n in range(8)]
    assert export(children)
    with pytest.raises(Refused) as caught:
        export([*children, child(8, denied=["/r8/x"])])
    assert caught.value.detail == "limit"


@pytest.mark.parametrize(
    ("children", "changes"),
    [
        ([], {}),
        ([child(0), child(1)], {"aggregate": False}),
        ([child(0), child(0)], {}),
        ([child(0), child(1, target="/t0")], {}),
        ([child(0, name="..")], {}),
        ([child(0, name="a/b")], {}),
        ([child(0)], {"target": "/"}),
        ([child(0)], {"mappings": [{"source": "9", "target": "/x", "readOnly": True}]}),
        ([child(0)], {"mappings": [{"source": "0/../x", "target": "/x", "readOnly": True}]}),
        ([child(0)], {"mappings": [{"source": "0", "target": "x", "readOnly": True}]}),
        ([child(0)], {"mappings": [{"source": "0", "target": "/x", "readOnly": True}] * 2}),
    ],
)
def test_an_export_that_doesn_t_hold_together_is_refused(
    children: list[dict[str, object]], changes: dict[str, object]
) -> None:
    with pytest.raises((Refused, Malformed, msgspec.ValidationError)):
        export(children, **changes)


# Protected paths and pins


@pytest.mark.parametrize(
    ("host", "protected"),
    [("one", "one"), ("one", "one/a/b"), ("one/a/b", "one"), ("one", "one/file"), ("one", "link/a")],
)
def test_a_share_that_reaches_a_protected_path_is_refused(tree: Path, host: str, protected: str) -> None:
    (tree / "link").symlink_to("one")
    share = Share(target="/x", host=str(tree / host))
    assert refusal(share, protected=(Protected(str(tree / protected), "the state directory"),)) == "protected"
    assert plan_shares([share], protected=[Protected(str(tree / "two"), "the state directory")])


@pytest.mark.parametrize(
    ("source", "point"),
    [("one/a", "two"), ("one", "two"), ("one/a/b", "two"), ("one/a", "two/deep"), ("one/a", "two/b")],
)
def test_a_share_that_reaches_a_protected_path_through_a_mount_is_refused(tree: Path, source: str, point: str) -> None:
    (tree / "two/deep").mkdir()
    (tree / "two/b").mkdir()
    code = (
        "from nvx_ref.plan import plan_shares, Share, Protected\n"
        f"plan_shares(ARGUMENT, protected=[Protected({str(tree / 'one/a')!r}, 'the state directory')])"
    )
    shares = [Share(target="/x", host=str(tree / "two"))]
    assert in_mount_namespace([(tree / source, tree / point)], code, shares) == "protected"
    assert in_mount_namespace([(tree / "three", tree / point)], code, shares) is None


@pytest.mark.spec("622.scope4.c")
def test_only_objects_inside_read_write_shares_are_pinned(tree: Path) -> None:
    one, two = str(tree / "one"), str(tree / "two")
    (tree / "two/x").mkdir()
    exports = planned(
        Share(target="/a", host=one, access=RW, denied=(f"{one}/a",), allowed=(f"{one}/a/b",)),
        Share(target="/b", host=two, denied=(f"{two}/x",)),
    )
    assert [pin.path for pin in exports.pins] == [f"{one}/a", f"{one}/a/b"]
    check_exports(exports)


@pytest.mark.spec("622.acc.11")
@pytest.mark.parametrize("how", ["renamed", "replaced", "recreated", "linked"])
def test_a_pinned_object_that_became_another_is_refused_at_start(tree: Path, how: str) -> None:
    one = tree / "one"
    exports = planned(Share(target="/a", host=str(one), access=RW, denied=(str(one / "d"),)))
    (one / "d").rename(one / "moved")
    if how == "replaced":
        (tree / "three").rename(one / "d")
    elif how == "recreated":
        (one / "d").mkdir()
    elif how == "linked":
        (one / "d").symlink_to("moved")
    with pytest.raises((NotFound, Refused)):
        check_exports(exports)


def test_children_say_what_a_layered_guest_sees(plan: ColdPlan) -> None:
    only = ExportChild(name="0", host="/x", access=Access.READ_ONLY)
    with pytest.raises(Refused):
        msgspec.structs.replace(plan, exports=ExportPlan(target="/t", aggregate=True, children=(only,)))
