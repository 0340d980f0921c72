"""Three checks stay apart: the entrypoint, explicit verification, and the metadata-only check at launch."""

from __future__ import annotations

import builtins
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.images import DISK_GUID, EROFS_UUID, Images
from nvx_ref.errors import Malformed, NotFound, NvxError, Refused
from nvx_ref.images import (
    DistroBinding,
    ImageFormat,
    PolicyResult,
    check_binding,
    check_plain,
    import_binding,
    seal_of,
    verify_distro,
)
from system import symlink, unix
from tests.images.conftest import WriteManifest, later

EROFS = ImageFormat.EROFS
OTHER_SCHEME = "unix-file-v1" if sys.platform == "win32" else "windows-file-v1"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def no_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_kwargs: object) -> bytes:
        raise OSError(5, "every read fails")

    for name in ("read", "pread", "readv", "preadv", "sendfile", "copy_file_range"):
        if hasattr(os, name):
            monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(mmap, "mmap", refuse)
    monkeypatch.setattr(builtins, "open", refuse)


# Verification


@pytest.mark.spec("622.pr7", "622p1.scope3.b", "622p1.scope4.a")
@pytest.mark.parametrize(
    ("name", "image_format", "identity"),
    [("erofs", "erofs", EROFS_UUID), ("gpt", "gpt", DISK_GUID), ("gpt4k", "gpt", DISK_GUID)],
)
def test_an_image_is_verified_for_its_format_and_identity(
    images: Images, name: str, image_format: str, identity: str
) -> None:
    path = getattr(images, name)
    binding = verify_distro(path, format=ImageFormat(image_format), identity=identity.upper())
    assert (binding.path, binding.identity, binding.manifest) == (path, identity, None)
    assert binding.image == seal_of(path)


@pytest.mark.spec("622.acc.19")
@pytest.mark.case("T53")
@pytest.mark.spec("622.scope2.e")
@pytest.mark.parametrize(("name", "image_format"), [("erofs", "gpt"), ("gpt", "erofs"), ("scratch", "erofs")])
def test_another_format_is_refused_without_probing(images: Images, name: str, image_format: str) -> None:
    with pytest.raises(Malformed) as caught:
        verify_distro(getattr(images, name), format=ImageFormat(image_format))
    assert caught.value.detail == "magic"
    assert caught.value.subject == getattr(images, name)


@pytest.mark.spec("622.acc.19")
def test_another_identity_is_refused(images: Images) -> None:
    with pytest.raises(Malformed, match="its identity is 11111111") as caught:
        verify_distro(images.erofs, format=EROFS, identity="2" + EROFS_UUID[1:])
    assert caught.value.detail == "identity"


@pytest.mark.parametrize("text", ["", "1111", EROFS_UUID + "0", EROFS_UUID.replace("-", ""), "é" + EROFS_UUID[1:]])
def test_an_identity_that_is_no_uuid_is_refused(images: Images, text: str) -> None:
    with pytest.raises(Malformed, match="isn't a UUID"):
        verify_distro(images.erofs, format=EROFS, identity=text)


@pytest.mark.spec("622p1.acc.1")
def test_verification_finds_one_fault_at_a_time_in_the_documented_order(
    erofs: Path, write_manifest: WriteManifest
) -> None:
    everything_wrong: dict[str, object] = {
        "format": 2,
        "artifact": "other.erofs",
        "artifact_sha256": "0" * 64,
        "packages": [{"name": 7}],
    }
    seen: list[str | None] = []
    for repaired in ("format", "artifact", "artifact_sha256", "packages"):
        write_manifest(erofs, **everything_wrong)
        with pytest.raises(NvxError) as caught:
            verify_distro(str(erofs), format=EROFS)
        seen.append(caught.value.detail)
        del everything_wrong[repaired]
    write_manifest(erofs, packages=[{"name": "busybox"}, {"name": "systemd"}])
    with pytest.raises(Refused) as refused:
        verify_distro(str(erofs), format=EROFS)
    assert [*seen, refused.value.detail] == ["manifest-format", "manifest-artifact", "digest", "packages", "systemd"]


@pytest.mark.parametrize(
    "changes",
    [
        {"format": True},
        {"format": "1"},
        {"format": ...},
        {"artifact": None},
        {"artifact_sha256": "0" * 63},
        {"artifact_sha256": "g" * 64},
        {"packages": ...},
        {"packages": None},
        {"packages": {}},
        {"packages": ["busybox"]},
        {"packages": [{}]},
    ],
)
def test_a_manifest_of_another_shape_is_malformed(
    erofs: Path, write_manifest: WriteManifest, changes: dict[str, object]
) -> None:
    path = write_manifest(erofs, **changes)
    with pytest.raises(Malformed) as caught:
        verify_distro(str(erofs), format=EROFS)
    assert caught.value.subject == str(path)


@settings(max_examples=80, deadline=None)
@given(raw=st.binary(max_size=200) | st.text(max_size=60).map(lambda text: f'{{"format":1,{text}'.encode()))
def test_arbitrary_manifests_give_typed_errors(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    images = tmp_path_factory.getbasetemp() / "fuzzed-manifest"
    images.mkdir(exist_ok=True)
    layer = images / "distro.erofs"
    if not layer.exists():
        shutil.copy(Path(__file__).resolve().parents[2] / "harness" / "images" / "distro.erofs", layer)
    (images / "distro.erofs.manifest.json").write_bytes(raw)
    with pytest.raises((Malformed, Refused)):
        verify_distro(str(layer), format=EROFS)


def test_a_deeply_nested_manifest_is_malformed(erofs: Path) -> None:
    erofs.with_name("distro.erofs.manifest.json").write_text('{"format":1,"x":' + "[" * 100_000)
    with pytest.raises(Malformed):
        verify_distro(str(erofs), format=EROFS)


def test_progress_ends_at_the_whole_image(erofs: Path, write_manifest: WriteManifest) -> None:
    write_manifest(erofs)
    seen: list[tuple[int, int]] = []
    verify_distro(str(erofs), format=EROFS, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(4096, 4096)]


@pytest.mark.spec("622p1.scope4.b")
@pytest.mark.parametrize("what", ["image", "manifest"])
def test_a_file_that_changes_while_it_is_verified_is_refused(
    erofs: Path, write_manifest: WriteManifest, what: str
) -> None:
    manifest = write_manifest(erofs)
    with pytest.raises(Refused) as caught:
        verify_distro(
            str(erofs), format=EROFS, progress=lambda _done, _total: later(erofs if what == "image" else manifest)
        )
    assert caught.value.detail == "changed"


# What is not an image


def test_a_missing_image_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nothing\.erofs"):
        verify_distro(str(tmp_path / "nothing.erofs"), format=EROFS)


@unix("there are no FIFOs")
def test_a_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(Refused, match="fifo") as caught:
        verify_distro(str(tmp_path / "fifo"), format=EROFS)
    assert caught.value.detail == "kind"


@unix("there are no FIFOs")
def test_a_fifo_beside_an_image_is_no_manifest_and_not_absence(erofs: Path) -> None:
    os.mkfifo(erofs.with_name("distro.erofs.manifest.json"))
    with pytest.raises(Refused, match="fifo"):
        verify_distro(str(erofs), format=EROFS)


def test_a_manifest_link_to_nothing_is_not_absence(erofs: Path) -> None:
    symlink(erofs.with_name("distro.erofs.manifest.json"), "gone")
    with pytest.raises(Refused, match="leads nowhere"):
        verify_distro(str(erofs), format=EROFS)


@pytest.mark.parametrize("what", ["directory", "empty"])
def test_directories_and_empty_files_are_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "image"
    path.mkdir() if what == "directory" else path.touch()
    with pytest.raises(Refused, match=what):
        verify_distro(str(path), format=EROFS)
    with pytest.raises(Refused, match=what):
        check_plain(str(path), "kernel")


@unix("access lists are judged there: tests/platform/windows/test_files.py")
def test_an_unreadable_image_is_refused(images: Images) -> None:
    code = (
        "import os, sys\n"
        "from nvx_ref.errors import Refused\n"
        "from nvx_ref.images import ImageFormat, verify_distro\n"
        "if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)\n"
        "try: verify_distro(sys.argv[1], format=ImageFormat.EROFS)\n"
        "except Refused as error: print(error)"
    )
    # Not below the runner's own temporary directory, which another user can't enter.
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o711)  # noqa: S103
        path = Path(shutil.copy(images.erofs, directory))
        path.chmod(0)
        done = subprocess.run(
            [sys.executable, "-c", code, path], check=True, capture_output=True, text=True, cwd=ROOT, timeout=60
        )
    assert done.stdout.startswith(f"{path}: cannot open it: Permission denied")


# The staged check


@pytest.mark.spec("622p1.scope1")
@pytest.mark.case("T57")
@pytest.mark.spec("622p1.acc.2")
@pytest.mark.spec("622p1.acc.3")
def test_a_staged_check_succeeds_where_every_read_fails_and_verification_does_not(
    erofs: Path, write_manifest: WriteManifest, request: pytest.FixtureRequest
) -> None:
    write_manifest(erofs)
    binding = verify_distro(str(erofs), format=EROFS)
    request.getfixturevalue("no_reads")
    with check_binding(binding) as checked:
        assert checked.seal == binding.image
    with pytest.raises(Refused) as caught:
        verify_distro(str(erofs), format=EROFS)
    assert caught.value.detail == "unreadable"


@pytest.mark.spec("622.acc.8")
@unix("no counter tells what a thread has read")
def test_a_staged_check_reads_as_much_of_a_huge_image_as_of_a_small_one(images: Images, tmp_path: Path) -> None:
    def counted(size: int) -> int:
        path = shutil.copy(images.erofs, tmp_path / f"{size}.erofs")
        path.chmod(0o644)
        os.truncate(path, size)
        binding = verify_distro(str(path), format=EROFS)
        before = bytes_read()
        check_binding(binding).close()
        return bytes_read() - before

    def bytes_read() -> int:
        # What this process asked for, from any file; asking is counted with the next question.
        return int(Path("/proc/self/io").read_text().split()[1])

    assert counted(1 << 20) == counted(10 << 30) < 1024


@pytest.mark.spec("622p1.acc.4")
@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("volume", "1", "volume"),
        ("file", "1", "file identity"),
        ("kind", "block", "kind"),
        ("length", 1, "length"),
        ("modified", 1, "modification time"),
        ("changed", 1, "change time"),
        ("scheme", OTHER_SCHEME, "scheme"),
    ],
)
def test_each_part_of_a_seal_fails_alone(
    erofs: Path, request: pytest.FixtureRequest, field: str, value: object, named: str
) -> None:
    binding = verify_distro(str(erofs), format=EROFS)
    seal = msgspec.convert({**msgspec.to_builtins(binding.image), field: value}, type(binding.image))
    request.getfixturevalue("no_reads")
    with pytest.raises(Refused, match=named) as caught:
        check_binding(msgspec.structs.replace(binding, image=seal))
    assert caught.value.detail == "stale"


@pytest.mark.case("T54")
@pytest.mark.parametrize("how", ["rewrite", "replace", "relink", "touch", "append"])
def test_a_changed_image_is_stale(erofs: Path, tmp_path: Path, how: str) -> None:
    erofs.chmod(0o644)
    other = shutil.copy2(erofs, tmp_path / "other.erofs")
    binding = verify_distro(str(erofs), format=EROFS)
    if how == "rewrite":
        erofs.write_bytes(erofs.read_bytes())
        later(erofs)
    elif how == "replace":
        Path(other).replace(erofs)
    elif how == "relink":
        erofs.unlink()
        symlink(erofs, other)
    elif how == "touch":
        later(erofs)
    else:
        with erofs.open("ab") as file:
            file.write(b"\0")
    with pytest.raises(Refused) as caught:
        check_binding(binding)
    assert caught.value.detail == "stale"


@pytest.mark.spec("622p1.scope3.a")
@pytest.mark.spec("622p1.acc.5")
def test_manifests_that_come_go_or_change_fail(erofs: Path, write_manifest: WriteManifest) -> None:
    without = verify_distro(str(erofs), format=EROFS)
    manifest = write_manifest(erofs)
    with pytest.raises(Refused, match="appeared"):
        check_binding(without)
    bound = verify_distro(str(erofs), format=EROFS)
    check_binding(bound).close()
    later(manifest)
    with pytest.raises(Refused, match="modification time") as caught:
        check_binding(bound)
    assert caught.value.subject == str(manifest)
    manifest.unlink()
    with pytest.raises(Refused, match="is gone"):
        check_binding(bound)
    check_binding(without).close()


@pytest.mark.spec("622p1.scope3.b")
@pytest.mark.spec("622p1.acc.5")
def test_another_policy_or_a_rejection_fails(erofs: Path) -> None:
    binding = verify_distro(str(erofs), format=EROFS)
    for stale in (
        msgspec.structs.replace(binding, policy_revision=binding.policy_revision + 1),
        msgspec.structs.replace(binding, policy_result=PolicyResult.REJECTED),
    ):
        with pytest.raises(Refused) as caught:
            check_binding(stale)
        assert caught.value.detail == "policy"


@pytest.mark.spec("622p1.scope4.a")
def test_a_binding_is_imported_without_reading(erofs: Path, request: pytest.FixtureRequest) -> None:
    seal = seal_of(str(erofs))
    request.getfixturevalue("no_reads")
    binding = import_binding(str(erofs), format=EROFS, identity=EROFS_UUID, image=seal, manifest=None)
    assert binding.identity == EROFS_UUID
    os.utime(erofs, ns=(0, 0))
    with pytest.raises(Refused, match="modification time"):
        import_binding(str(erofs), format=EROFS, identity=None, image=seal, manifest=None)


@pytest.mark.spec("622p1.scope7.a")
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("group-writable directory", marks=unix("who may write there is an access list's to say")),
        "writable file",
        "writable manifest",
    ],
)
def test_what_others_could_change_is_not_staged(erofs: Path, write_manifest: WriteManifest, fault: str) -> None:
    manifest = write_manifest(erofs)
    erofs.chmod(0o644 if fault == "writable file" else 0o444)
    manifest.chmod(0o644 if fault == "writable manifest" else 0o444)
    erofs.parent.chmod(0o770 if fault == "group-writable directory" else 0o755)
    seals = {"image": seal_of(str(erofs)), "manifest": seal_of(str(manifest))}
    with pytest.raises(Refused) as caught:
        import_binding(str(erofs), format=EROFS, identity=None, **seals)
    assert caught.value.detail == "staging"
    assert caught.value.subject == str(manifest if fault == "writable manifest" else erofs)


def test_a_binding_survives_its_json(erofs: Path, write_manifest: WriteManifest) -> None:
    for _ in range(2):
        binding = verify_distro(str(erofs), format=EROFS)
        raw = msgspec.json.encode(binding)
        assert msgspec.json.decode(raw, type=DistroBinding) == binding
        assert (b'"manifest":null' in raw) == (binding.manifest is None)
        write_manifest(erofs)
