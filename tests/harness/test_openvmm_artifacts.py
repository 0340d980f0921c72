"""Artifacts of a real OpenVMM: every way to name them, every layout, and everything that is wrong named at once."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from harness.backends import artifacts
from harness.backends.artifacts import ARCHIVES, CONTRACTS, Found
from harness.settings import Settings
from stand_in import checkout, release, state, sums

NAMES = ("bin/openvmm", "guest/vmlinux", "guest/initramfs.cpio.gz", "SOURCE-MANIFEST.json")


EROFS = bytes(1024) + (0xE0F5E1E2).to_bytes(4, "little")
"""As much of an image as tells what it is."""


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return release(tmp_path / "release")


def find(given: str | None = None, *, openvmm: str | None = None, backend: str = "kvm", **environment: str) -> Found:
    return artifacts.find(Settings(backend=backend, artifacts=given, openvmm=openvmm), environment)


def packed(root: Path, place: Path, backend: str = "kvm") -> Path:
    place.mkdir(exist_ok=True)
    sums(root)
    with tarfile.open(place / ARCHIVES[backend], "w:gz") as tar:
        tar.add(root, "nvx-0.1.0")
    return place


def test_a_release_is_found_by_the_option_and_by_the_environment(made: Path) -> None:
    for found in (find(str(made)), find(NVX_ARTIFACTS_DIR=str(made)), find(str(made), NVX_ARTIFACTS_DIR="/none")):
        assert found.missing == []
        assert found.command == [str(made / "bin/openvmm")]
        assert (found.kernel, found.initrd) == (str(made / NAMES[1]), str(made / NAMES[2]))
        assert found.adapter == str(made / "guest/initramfs-adapter.cpio.gz")
        assert sorted(found.digests) == sorted(NAMES[:3])


def test_a_checkout_needs_no_digests_and_brings_its_distro(tmp_path: Path) -> None:
    root = checkout(tmp_path / "checkout")
    (root / "build/ubuntu-distro.erofs").write_bytes(EROFS)
    found = find(str(root))
    assert found.missing == []
    assert found.command == [str(root / "openvmm/target/release/openvmm")]
    assert found.distro == str(root / "build/ubuntu-distro.erofs")
    assert len(found.digests) == 3


def test_three_variables_name_the_pieces_one_by_one(made: Path) -> None:
    parts = {
        "NVX_OPENVMM": f"{made}/bin/openvmm",
        "NVX_KERNEL": f"{made}/guest/vmlinux",
        "NVX_INITRD": f"{made}/guest/initramfs.cpio.gz",
    }
    # They go before the directory, as upstream's consumers have it.
    found = find(**parts, NVX_ARTIFACTS_DIR="/none")
    assert (found.missing, found.manifest) == ([], str(made / "SOURCE-MANIFEST.json"))
    elsewhere = made.parent / "SOURCE-MANIFEST.json"
    (made / "SOURCE-MANIFEST.json").rename(elsewhere)
    assert find(**parts).missing == ["SOURCE-MANIFEST.json beside the kernel (NVX_MANIFEST)"]
    assert find(**parts, NVX_MANIFEST=str(elsewhere)).missing == []
    for left_out in parts:
        some = {name: value for name, value in parts.items() if name != left_out}
        missing = find(**some, NVX_MANIFEST=str(elsewhere), NVX_ARTIFACTS_DIR=str(made)).missing
        assert missing[0] == f"{left_out} (it goes with {' and '.join(some)})"


def test_an_openvmm_that_is_given_takes_the_place_of_the_release_s_own(made: Path) -> None:
    command = f"{made}/bin/openvmm --option"
    assert find(str(made), openvmm=command).command == [str(made / "bin/openvmm"), "--option"]
    assert find(str(made), openvmm="no-such-program").missing == ["a program no-such-program that can be started"]
    assert "an OpenVMM command that can be split into words" in find(str(made), openvmm="'unbalanced").missing
    assert find(openvmm=command).missing[:2] == [
        "NVX_KERNEL (it goes with --openvmm)",
        "NVX_INITRD (it goes with --openvmm)",
    ]


def test_a_path_with_spaces_is_a_command_of_one_word(made: Path) -> None:
    spaced = made.parent / "a re lease"
    made.rename(spaced)
    parts = {
        "NVX_OPENVMM": f"{spaced}/bin/openvmm",
        "NVX_KERNEL": f"{spaced}/guest/vmlinux",
        "NVX_INITRD": f"{spaced}/guest/initramfs.cpio.gz",
    }
    found = find(**parts)
    assert (found.missing, found.command) == ([], [parts["NVX_OPENVMM"]])


def test_a_piece_on_another_drive_has_no_digest_in_the_release(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str, start: str) -> str:
        raise ValueError(f"path is on mount {path!r}, start on mount {start!r}")

    monkeypatch.setattr(artifacts.os.path, "relpath", refused)
    assert find(str(made)).missing == []


def test_a_program_that_lost_its_right_to_be_started_says_so(made: Path) -> None:
    (made / "bin/openvmm").chmod(0o644)
    assert find(str(made)).missing == [f"the right to start {made}/bin/openvmm (chmod +x)"]


def test_everything_that_is_missing_is_named_at_once(made: Path) -> None:
    assert find().missing == [f"OpenVMM and its guest ({artifacts.HOW})"]
    assert find(f"{made}/none").missing == [f"the directory {made}/none"]
    (made / "bin/openvmm").unlink()
    (made / "guest/vmlinux").unlink()
    assert find(str(made)).missing == [f"bin/openvmm in {made}", f"guest/vmlinux in {made}"]
    empty = made.parent / "empty"
    empty.mkdir()
    missing = find(str(empty)).missing
    assert [one.partition(" ")[0] for one in missing] == list(NAMES)
    assert missing[-1].endswith(f"(nor is there {ARCHIVES['kvm']})")


@pytest.mark.parametrize(
    ("contract", "stated"),
    [
        ("microvm_abi_version", 1),
        ("microvm_abi_version", 3),
        ("microvm_abi_version", "2"),
        ("control_session_protocol_version", 2),
        ("control_session_protocol_version", True),
        ("control_contract_revision", "nvx-microvm-v2-control-v1"),
        ("control_contract_revision", None),
    ],
)
def test_a_release_of_another_contract_is_refused_by_name(made: Path, contract: str, stated: object) -> None:
    state(made, **{contract: stated})
    wanted = CONTRACTS[contract]
    assert find(str(made)).missing == [
        f"a release of {contract} {wanted!r} ({made}/SOURCE-MANIFEST.json states {stated!r})"
    ]


def test_every_contract_that_differs_is_named(made: Path) -> None:
    state(made, microvm_abi_version=7, control_session_protocol_version=7, control_contract_revision="x")
    assert [one.split()[3] for one in find(str(made)).missing] == [*CONTRACTS]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "a SOURCE-MANIFEST.json that can be read"),
        ("[]", "an openvmm section in"),
        ('{"openvmm": 1}', "an openvmm section in"),
        ("[" * 100_000, "a SOURCE-MANIFEST.json that can be read"),
        ("\udcff", "a SOURCE-MANIFEST.json that can be read"),
    ],
)
def test_a_manifest_that_is_none_is_refused(made: Path, text: str, said: str) -> None:
    (made / "SOURCE-MANIFEST.json").write_bytes(text.encode(errors="surrogateescape"))
    (missing,) = find(str(made)).missing
    assert missing.startswith(said)
    assert "\n" not in missing


def test_a_piece_that_differs_from_its_digest_is_refused(made: Path) -> None:
    (made / "guest/vmlinux").write_bytes(b"another kernel")
    (missing,) = find(str(made)).missing
    assert missing.startswith(f"guest/vmlinux as {made}/SHA256SUMS states it (its SHA-256 is ")
    (made / "SHA256SUMS").write_text("nothing\n")
    (missing,) = find(str(made)).missing
    assert missing.startswith("a sound SHA256SUMS (")


def test_an_archive_is_found_by_itself_and_in_a_directory(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVX_HARNESS_CACHE", str(tmp_path / "cache"))
    place = packed(made, tmp_path / "downloads")
    for given in (place, place / ARCHIVES["kvm"]):
        found = find(str(given))
        assert found.missing == []
        assert found.command[0].startswith(str(tmp_path / "cache"))
        assert subprocess.run([*found.command, "--version"], check=False, capture_output=True).returncode == 0
    # Another hypervisor's release isn't taken in its place.
    assert find(str(place), backend="mshv").missing[-1].endswith(f"(nor is there {ARCHIVES['mshv']})")


def test_a_damaged_archive_is_what_is_missing(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVX_HARNESS_CACHE", str(tmp_path / "cache"))
    place = packed(made, tmp_path / "downloads")
    archive = place / ARCHIVES["kvm"]
    archive.write_bytes(archive.read_bytes()[:-100])
    (missing,) = find(str(place)).missing
    assert missing.startswith(f"a sound archive ({archive}: ")
    assert os.listdir(tmp_path / "cache" / "artifacts") == []


def test_a_distro_can_be_given(made: Path) -> None:
    assert find(str(made), NVX_DISTRO="/none.erofs").missing == ["the file /none.erofs"]
    manifest = json.loads((made / "SOURCE-MANIFEST.json").read_text())
    assert manifest["openvmm"]["microvm_abi_version"] == 2
    kernel, distro = made / "guest/vmlinux", made.parent / "distro"
    assert find(str(made), NVX_DISTRO=str(kernel)).missing == [
        f"a distro that is an EROFS image ({kernel} is none, or can't be read)"
    ]
    distro.write_bytes(EROFS)
    found = find(str(made), NVX_DISTRO=str(distro))
    assert (found.distro, found.missing) == (str(distro), [])
