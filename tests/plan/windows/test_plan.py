"""Plans on Windows: drives below the guest's own place, aliases by letter case, process lines, prepared launches."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

import wine

wine.only_windows()

from nvx_ref.errors import NotFound, NvxError, Refused
from nvx_ref.plan import (
    Access,
    ColdPlan,
    ExportPlan,
    MappingPolicy,
    Share,
    check_exports,
    decode_plan,
    encode_plan,
    plan_mappings,
    plan_shares,
    prepare,
)
from nvx_ref.plan.argv import MAX_PROCESS_LINE, PROCESS_LINE_RESERVE, Endpoints, Files, render
from nvx_ref.plan.exports import export_options
from nvx_ref.platform.windows import commandline
from system import open_descriptors
from tests.plan.conftest import Inputs

PIPE = "//./pipe/openvmm-microvm-" + "0" * 32


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    place = Path(os.path.realpath(tmp_path))
    for name in ("a/b/c", "a/d", "e", "f"):
        (place / name).mkdir(parents=True)
    for name in ("a/b/file", "f/one", "f/two"):
        (place / name).write_text(name)
    return place


def planned(tree: Path, ro: str = "", rw: str = "", denied: str = "") -> ExportPlan:
    lists = [tuple(str(tree / name) for name in names.split()) for names in (ro, rw, denied)]
    exports = plan_mappings(MappingPolicy(readonly_paths=lists[0], readwrite_paths=lists[1], denied_paths=lists[2]))
    assert exports is not None
    return exports


def in_guest(path: Path) -> str:
    drive, rest = os.path.splitdrive(path)
    return f"/mnt/{drive[0].lower()}{rest}".replace("\\", "/")


def table(exports: ExportPlan) -> list[tuple[str, str, bool]]:
    return [(one.source, one.target, one.read_only) for one in exports.mappings]


def detail(**paths: object) -> str | None:
    with pytest.raises(NvxError) as told:
        plan_mappings(msgspec.convert(paths, MappingPolicy))
    return told.value.detail


# What is mapped


@pytest.mark.spec("622.scope1.c")
def test_what_is_mapped_is_below_its_drive_in_the_guest_and_by_its_own_path_for_the_vmm(tree: Path) -> None:
    exports = planned(tree, ro="e a", rw="a/b/c a/d")
    assert export_options(exports) == [
        *("--mount-aggregate", "/run/nvx/hostfs/root"),
        *("--mount-child", f"0,{tree}\\a,rw", "--mount-child", f"1,{tree}\\e,ro"),
        *("--mount-write", f"{tree}\\a\\b\\c", "--mount-write", f"{tree}\\a\\d"),
    ]
    place = in_guest(tree)
    assert table(exports) == [
        ("0", f"{place}/a", True),
        ("0/b/c", f"{place}/a/b/c", False),
        ("0/d", f"{place}/a/d", False),
        ("1", f"{place}/e", True),
    ]


def test_a_file_is_shown_in_its_parent_which_stays_hidden(tree: Path) -> None:
    exports = planned(tree, ro="f/one", rw="f/two")
    assert export_options(exports)[2:] == [
        *("--mount-child", f"0,{tree}\\f,rw", "--mount-deny", f"{tree}\\f"),
        *("--mount-allow", f"{tree}\\f\\one", "--mount-allow", f"{tree}\\f\\two", "--mount-write", f"{tree}\\f\\two"),
    ]
    assert table(exports) == [("0/one", f"{in_guest(tree)}/f/one", True), ("0/two", f"{in_guest(tree)}/f/two", False)]


@pytest.mark.parametrize("form", [str.upper, str.lower, lambda path: path.replace("\\", "/")], ids=["A", "a", "/"])
def test_a_path_in_another_form_is_the_same_object(tree: Path, form: object) -> None:
    alias = form(str(tree / "a" / "b"))  # type: ignore[operator]
    exports = plan_mappings(MappingPolicy(readonly_paths=(str(tree / "a" / "b"),), readwrite_paths=(alias,)))
    assert exports is not None
    # What comes twice keeps the stricter access, and is exported once.
    assert [one.read_only for one in exports.mappings] == [True]
    assert len(exports.children) == 1
    # And what is written under one name may not hold what is only read under another.
    inner = str(tree / "a" / "b" / "c")
    assert detail(readonlyPaths=[inner], readwritePaths=[alias]) == "read-only-inside-read-write"


@pytest.mark.parametrize("path", ["C:\\", "C:/", "C:\\file-in-the-root"])
def test_whole_volumes_and_files_in_their_roots_are_refused(path: str) -> None:
    if path.endswith("root"):
        try:
            Path(path).touch()
        except PermissionError:
            pytest.skip("this user may not write there")
    try:
        assert detail(readonlyPaths=[path]) == "volume"
    finally:
        if path.endswith("root"):
            Path(path).unlink()


@pytest.mark.parametrize("path", ["\\\\.\\pipe\\nvx-none", "relative", "C:relative", "\\no-drive"])
def test_what_is_on_no_drive_or_relative_to_something_is_refused(path: str) -> None:
    with pytest.raises((Refused, NotFound)):
        plan_mappings(MappingPolicy(readonly_paths=(path,)))


@pytest.mark.spec("622.scope4.c")
def test_what_was_pinned_is_looked_at_again_and_survives_its_json(tree: Path, plan: ColdPlan) -> None:
    share = Share(target="/in", host=str(tree / "a"), access=Access.READ_WRITE, denied=(str(tree / "a" / "d"),))
    sharing = msgspec.structs.replace(plan, exports=plan_shares([share]))
    again = decode_plan(encode_plan(sharing))
    assert again == sharing
    assert again.exports is not None
    check_exports(again.exports)
    (tree / "a" / "d").rename(tree / "a" / "moved")
    (tree / "a" / "d").mkdir()
    with pytest.raises(Refused) as told:
        check_exports(again.exports)
    assert told.value.detail == "pin"


# What is started


def test_the_line_that_is_counted_is_the_line_that_is_started(plan: ColdPlan) -> None:
    """Quotations count as they are written; a character over 16 bits counts twice."""
    places = Files(kernel="C:\\a b\\vmlinux", initramfs="C:\\i\\", distro="C:\\d\\d.erofs", scratch="C:\\s\\s.ext4")
    endpoints = Endpoints(control=PIPE, report="C:\\r\\outcome.json")
    rest = render(["vmm"], plan, places, endpoints)
    assert commandline.join(rest) == subprocess.list2cmdline(rest)
    assert '"C:\\a b\\vmlinux"' in commandline.join(rest)
    limit = MAX_PROCESS_LINE - PROCESS_LINE_RESERVE
    for piece, units in (("x", 1), ("é", 1), ("\U0001f600", 2)):
        # A space, and a NUL at the end.
        room = limit - len(commandline.join(rest).encode("utf-16-le")) // 2 - 2
        word = piece * (room // units) + "x" * (room % units)
        assert len(commandline.join([word, *rest]).encode("utf-16-le")) // 2 == limit - 1
        render([word, "vmm"], plan, places, endpoints)
        with pytest.raises(Refused) as told:
            render([word + "x", "vmm"], plan, places, endpoints)
        assert told.value.detail == "process-line"


@pytest.mark.parametrize("path", ["C:\\a,b", "C:\\a;b", "C:\\a[b", "C:\\a.vhd", "C:\\a.VHDX"])
def test_an_image_whose_name_the_vmm_would_read_otherwise_is_refused_before_anything_starts(
    inputs: Inputs, plan: ColdPlan, path: str
) -> None:
    odd = inputs.directory / path.removeprefix("C:\\")
    Path(inputs.distro.path).rename(odd)
    moved = msgspec.structs.replace(inputs.distro, path=str(odd))
    before = open_descriptors()
    with (
        pytest.raises(Refused),
        prepare(plan, inputs.artifacts, distro=moved, scratch=inputs.scratch) as prepared,
    ):
        prepared.command(endpoint=PIPE, report="C:\\r")
    assert open_descriptors() == before


@pytest.mark.spec("622.scope1.f", "622.scope3.b")
def test_a_prepared_launch_names_its_files_by_path_and_guards_them_until_it_is_closed(
    inputs: Inputs, plan: ColdPlan
) -> None:
    files = [inputs.distro.path, inputs.scratch.path, inputs.artifacts.kernel, inputs.artifacts.initramfs]
    before = open_descriptors()
    with prepare(plan, inputs.artifacts, distro=inputs.distro, scratch=inputs.scratch) as prepared:
        command = prepared.command(endpoint=PIPE, report=str(inputs.directory / "outcome.json"))
        named = " ".join(command.argv)
        for path in files:
            assert os.path.realpath(path) in named
            with pytest.raises(PermissionError):
                os.rename(path, f"{path}.away")
        assert len(open_descriptors() - before) == len(files)
        with pytest.raises(Refused) as told:
            prepare(plan, inputs.artifacts, distro=inputs.distro, scratch=inputs.scratch)
        assert told.value.detail == "scratch-owned"
    assert open_descriptors() == before
    for path in files:
        os.rename(path, f"{path}.away")


@pytest.mark.parametrize("what", ["distro", "scratch", "kernel", "initramfs"])
@pytest.mark.parametrize("how", ["gone", "empty", "directory"])
def test_a_bad_input_is_named_and_nothing_stays_open(inputs: Inputs, plan: ColdPlan, what: str, how: str) -> None:
    path = Path(getattr(inputs, what).path if what in {"distro", "scratch"} else getattr(inputs.artifacts, what))
    path.chmod(0o600)
    path.unlink()
    if how == "empty":
        path.touch()
    elif how == "directory":
        path.mkdir()
    before = open_descriptors()
    with pytest.raises(NotFound if how == "gone" else Refused) as told:
        prepare(plan, inputs.artifacts, distro=inputs.distro, scratch=inputs.scratch)
    assert told.value.subject == str(path)
    assert open_descriptors() == before
