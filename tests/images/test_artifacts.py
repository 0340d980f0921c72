"""Layouts, and the runtime identity that a release states."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.images import write_artifacts
from nvx_ref.errors import Malformed, NotFound, Refused
from nvx_ref.images import Artifacts, Layout, explicit_artifacts, find_artifacts, read_identity
from nvx_ref.images.artifacts import parse_checksums
from system import unix

LAYOUT_FILES = ["bin/openvmm", "guest/vmlinux", "guest/initramfs.cpio.gz", "SOURCE-MANIFEST.json", "SHA256SUMS"]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return Path(write_artifacts(str(tmp_path / "release")).directory)


def digest(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_release_states_its_identity(release: Path) -> None:
    artifacts = find_artifacts(str(release))
    assert artifacts.layout is Layout.RELEASE
    parts = read_identity(artifacts)
    assert msgspec.structs.astuple(parts) == (
        digest(release / "bin/openvmm"),
        digest(release / "guest/vmlinux"),
        digest(release / "guest/initramfs.cpio.gz"),
        "microvm-abi/2",
        "nvx-microvm-v2-control-v2/session-1",
    )


def test_a_checkout_states_its_identity_by_its_own_names(release: Path, tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    names = {
        "openvmm/target/release/openvmm": "bin/openvmm",
        "build/vmlinux": "guest/vmlinux",
        "build/initramfs.cpio.gz": "guest/initramfs.cpio.gz",
    }
    for name, source in names.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes((release / source).read_bytes())
    (root / "SOURCE-MANIFEST.json").write_bytes((release / "SOURCE-MANIFEST.json").read_bytes())
    (root / "SHA256SUMS").write_text("".join(f"{digest(root / name)[7:]} *{name}\n" for name in names))
    artifacts = find_artifacts(str(root))
    assert artifacts.layout is Layout.CHECKOUT
    assert read_identity(artifacts) == read_identity(find_artifacts(str(release)))


def test_artifacts_named_one_by_one_have_the_releases_identity(release: Path) -> None:
    artifacts = explicit_artifacts(
        ["python", "-I", "fake.py"],
        kernel=str(release / "guest/vmlinux"),
        initramfs=str(release / "guest/initramfs.cpio.gz"),
        manifest=str(release / "SOURCE-MANIFEST.json"),
    )
    assert artifacts.openvmm == ("python", "-I", "fake.py")
    assert read_identity(artifacts) == read_identity(find_artifacts(str(release)))
    assert msgspec.json.decode(msgspec.json.encode(artifacts), type=Artifacts) == artifacts


@pytest.mark.spec("620.scope1.g")
def test_nothing_is_hashed_for_an_identity(release: Path) -> None:
    before = read_identity(find_artifacts(str(release)))
    (release / "guest/vmlinux").write_bytes(b"another kernel")
    assert read_identity(find_artifacts(str(release))) == before


def test_every_missing_piece_is_named(release: Path) -> None:
    for name in LAYOUT_FILES[1:]:
        (release / name).unlink()
    with pytest.raises(NotFound) as caught:
        find_artifacts(str(release))
    assert all(name in str(caught.value) for name in LAYOUT_FILES[1:])
    assert "bin/openvmm" not in str(caught.value)


def test_no_directory_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such directory"):
        find_artifacts(str(tmp_path / "none"))


def test_missing_explicit_pieces_are_all_named(release: Path) -> None:
    (release / "SHA256SUMS").unlink()
    with pytest.raises(NotFound) as caught:
        explicit_artifacts(["vmm"], kernel="/none/k", initramfs="/none/i", manifest=str(release / LAYOUT_FILES[3]))
    assert all(name in str(caught.value) for name in ("/none/k", "/none/i", "SHA256SUMS"))


def test_an_explicit_piece_that_is_no_file_is_refused_as_one(release: Path) -> None:
    with pytest.raises(Refused, match="not a regular file") as caught:
        explicit_artifacts(["vmm"], kernel=str(release), initramfs=os.devnull, manifest=str(release / LAYOUT_FILES[3]))
    assert str(release) in str(caught.value)
    assert os.devnull in str(caught.value)


@pytest.mark.parametrize(("word", "kept"), [("./vmm", "./vmm"), ("bin/vmm", "bin/vmm"), ("vmm", None)])
def test_a_command_by_path_means_the_same_file_from_every_directory(
    release: Path, word: str, kept: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(release)
    files = LAYOUT_FILES[1:4]
    artifacts = explicit_artifacts([word, "./x"], kernel=files[0], initramfs=files[1], manifest=files[2])
    assert artifacts.openvmm == (word if kept is None else os.path.join(os.getcwd(), kept), "./x")


@pytest.mark.parametrize("command", [[], [""], ["a\0b"]])
def test_an_unusable_command_is_refused(release: Path, command: list[str]) -> None:
    with pytest.raises(Refused):
        explicit_artifacts(command, kernel="k", initramfs="i", manifest=str(release / LAYOUT_FILES[3]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("microvm_abi_version", 3),
        ("control_session_protocol_version", 2),
        ("control_contract_revision", "nvx-microvm-v3-control-v1"),
    ],
)
def test_a_release_with_other_contracts_is_refused(release: Path, field: str, value: object) -> None:
    path = release / "SOURCE-MANIFEST.json"
    source = json.loads(path.read_text())
    source["openvmm"][field] = value
    path.write_text(json.dumps(source))
    artifacts = find_artifacts(str(release))
    with pytest.raises(Refused, match=field) as caught:
        read_identity(artifacts)
    assert caught.value.detail == "contract"
    # A reattach compares: the difference is its verdict, not an error.
    assert read_identity(artifacts, launching=False).boot_contract == "microvm-abi/2"


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"openvmm":{}}', '{"openvmm":{"microvm_abi_version":true}}', "\xff", "{"]
)
def test_a_source_manifest_of_another_shape_is_malformed(release: Path, text: str) -> None:
    (release / "SOURCE-MANIFEST.json").write_text(text, encoding="latin-1")
    with pytest.raises(Malformed, match=r"SOURCE-MANIFEST\.json"):
        read_identity(find_artifacts(str(release)))


@pytest.mark.parametrize("name", LAYOUT_FILES[:3])
def test_a_missing_line_is_refused_by_name(release: Path, name: str) -> None:
    path = release / "SHA256SUMS"
    path.write_text(
        "".join(line for line in path.read_text().splitlines(keepends=True) if not line.endswith(name + "\n"))
    )
    with pytest.raises(Malformed, match=f"no line for {name}"):
        read_identity(find_artifacts(str(release)))


@pytest.mark.parametrize(
    "line", ["0" * 64 + " bin/openvmm", "0" * 63 + "  x", "g" * 64 + "  x", "0" * 64 + "  ", "x", "0" * 64 + "\t x"]
)
def test_a_bad_checksum_line_is_named(line: str) -> None:
    with pytest.raises(Malformed, match="line 2"):
        parse_checksums(f"{'1' * 64}  good\n{line}\n".encode(), subject="SHA256SUMS")


def test_a_name_that_comes_twice_is_refused() -> None:
    with pytest.raises(Malformed, match="again"):
        parse_checksums(f"{'1' * 64}  x\n{'2' * 64}  ./x\n".encode(), subject="SHA256SUMS")


def test_an_openvmm_for_two_systems_is_ambiguous(release: Path) -> None:
    with (release / "SHA256SUMS").open("a") as file:
        file.write(f"{'1' * 64}  bin/openvmm.exe\n")
    with pytest.raises(Malformed, match="both"):
        read_identity(find_artifacts(str(release)))


def test_huge_metadata_is_refused(release: Path) -> None:
    artifacts = find_artifacts(str(release))
    os.truncate(release / "SHA256SUMS", 2 << 20)
    with pytest.raises(Malformed, match="are over"):
        read_identity(artifacts)


@unix("there are no FIFOs")
def test_metadata_that_is_a_fifo_is_refused(release: Path) -> None:
    artifacts = find_artifacts(str(release))
    path = release / "SHA256SUMS"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Refused, match="fifo"):
        read_identity(artifacts)


@given(st.binary(max_size=300))
def test_arbitrary_checksums_give_typed_errors(raw: bytes) -> None:
    with suppress(Malformed):
        parse_checksums(raw, subject="SHA256SUMS")
