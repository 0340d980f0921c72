"""Archives of a release: unpacked whole and verified, or refused with the reason and without a trace."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.backends.archives import BadArchive, Limits, unpacked
from stand_in import release, sums

Spoil = Callable[[tarfile.TarFile], None]


def pack(root: Path, archive: Path, *, below: str = "") -> Path:
    """Pack a release, as a zip or a tar by the name."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    names = {path: "/".join([*([below] if below else []), str(path.relative_to(root))]) for path in files}
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
            for path, name in names.items():
                zipped.write(path, name)
        return archive
    with tarfile.open(archive, "w:gz") as tar:
        for path, name in names.items():
            tar.add(path, name)
    return archive


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    root = release(tmp_path / "whole")
    sums(root)
    return root


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    place = tmp_path / "cache"
    place.mkdir()
    return place


@pytest.mark.parametrize("name", ["nvx.tar.gz", "nvx.zip"])
@pytest.mark.parametrize("below", ["", "nvx-0.1.0"])
def test_an_archive_is_unpacked_once_and_whole(whole: Path, tmp_path: Path, cache: Path, name: str, below: str) -> None:
    archive = pack(whole, tmp_path / name, below=below)
    root = Path(unpacked(str(archive), str(cache)))
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert files == {str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file()}
    assert (root / "bin/openvmm").stat().st_mode & stat.S_IXUSR
    assert (root / "guest/vmlinux").read_bytes() == (whole / "guest/vmlinux").read_bytes()
    before = (root / "guest/vmlinux").stat().st_ino
    assert unpacked(str(archive), str(cache)) == str(root)
    assert (root / "guest/vmlinux").stat().st_ino == before
    assert len(os.listdir(cache)) == 1


def test_the_digest_beside_an_archive_is_obeyed(whole: Path, tmp_path: Path, cache: Path) -> None:
    archive = pack(whole, tmp_path / "nvx.tar.gz")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    stated = tmp_path / "SHA256SUMS"
    stated.write_text(f"{'0' * 64}  other.zip\n{digest} *nvx.tar.gz\n")
    assert unpacked(str(archive), str(cache))
    stated.write_text(f"{'0' * 64}  nvx.tar.gz\n")
    shutil.rmtree(cache)
    cache.mkdir()
    with pytest.raises(BadArchive, match=rf"its SHA-256 is {digest}, and .*SHA256SUMS states 0000"):
        unpacked(str(archive), str(cache))
    assert os.listdir(cache) == []


def entry(name: str, data: bytes = b"x", **fields: object) -> Spoil:
    def add(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        for field, value in fields.items():
            setattr(info, field, value)
        tar.addfile(info, io.BytesIO(data) if info.isreg() else None)

    return add


ATTACKS: dict[str, tuple[Spoil, str]] = {
    "upwards": (entry("guest/../../out"), r"it holds the name 'guest/\.\./\.\./out'"),
    "absolute": (entry("/etc/out"), "it holds the name '/etc/out'"),
    "backslash": (entry("guest\\..\\out"), "it holds the name"),
    "drive": (entry("C:out"), "it holds the name 'C:out'"),
    "device name": (entry("guest/NUL.txt"), "it holds the name 'guest/NUL.txt'"),
    "trailing dot": (entry("guest/x."), "it holds the name 'guest/x.'"),
    "control": (entry("guest/a\nb"), "it holds the name"),
    "long": (entry("guest/" + "n" * 2000), "it holds the name"),
    "symlink": (entry("guest/link", b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "'guest/link' is neither"),
    "hard link": (entry("guest/link", b"", type=tarfile.LNKTYPE, linkname="bin/openvmm"), "'guest/link' is neither"),
    "device": (entry("guest/dev", b"", type=tarfile.CHRTYPE), "'guest/dev' is neither a plain file nor a directory"),
    "fifo": (entry("guest/fifo", b"", type=tarfile.FIFOTYPE), "'guest/fifo' is neither"),
    "twice": (entry("bin/openvmm"), "it holds 'bin/openvmm' twice"),
    "twice in another case": (entry("BIN/OpenVMM"), "it holds 'BIN/OpenVMM' twice"),
    "file as a directory": (entry("bin/openvmm/x"), "is both a file and a directory"),
    "header bomb": (entry("x", b"a" * (2 << 20), type=tarfile.XHDTYPE), "an extended header of 2097152 bytes"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_no_release_holds_is_refused_and_leaves_nothing(
    whole: Path, tmp_path: Path, cache: Path, attack: str
) -> None:
    spoil, said = ATTACKS[attack]
    archive = tmp_path / "nvx.tar.gz"
    with tarfile.open(archive, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(path for path in whole.rglob("*") if path.is_file()):
            tar.add(path, str(path.relative_to(whole)))
        if attack == "header bomb":
            # tarfile itself writes none, so it is planted as raw bytes.
            info = tarfile.TarInfo("x")
            info.type, info.size = tarfile.XHDTYPE, 2 << 20
            tar.fileobj.write(info.tobuf(tarfile.USTAR_FORMAT) + bytes(2 << 20))  # type: ignore[union-attr]
        else:
            spoil(tar)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(BadArchive, match=said):
        unpacked(str(archive), str(cache))
    assert os.listdir(cache) == []
    assert sorted(os.listdir(tmp_path)) == before


def zip_with(path: Path, name: str, *, mode: int = 0o100644, data: bytes = b"x") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        zipped.writestr(info, data)
    return path


@pytest.mark.parametrize(
    ("name", "mode", "said"),
    [
        ("../out", 0o100644, "it holds the name"),
        ("/out", 0o100644, "it holds the name"),
        ("guest/link", 0o120777, "'guest/link' is neither a plain file nor a directory"),
        ("guest/device", 0o020644, "'guest/device' is neither"),
        ("guest/vmlinux", 0o100644, "it holds no SHA256SUMS"),
    ],
)
def test_a_zip_is_judged_by_the_same_rules(tmp_path: Path, cache: Path, name: str, mode: int, said: str) -> None:
    archive = zip_with(tmp_path / "nvx.zip", name, mode=mode)
    with pytest.raises(BadArchive, match=said):
        unpacked(str(archive), str(cache))
    assert os.listdir(cache) == []


@pytest.mark.parametrize("suffix", [".tar.gz", ".zip"])
def test_a_bomb_ends_at_the_limit(tmp_path: Path, cache: Path, suffix: str) -> None:
    big = tmp_path / "big"
    big.mkdir()
    (big / "zeros").write_bytes(bytes(8 << 20))
    archive = pack(big, tmp_path / f"nvx{suffix}")
    assert archive.stat().st_size < 64 << 10
    with pytest.raises(BadArchive, match="its files have over 1048576 bytes"):
        unpacked(str(archive), str(cache), limits=Limits(size=1 << 20))
    for number in range(20):
        (big / str(number)).touch()
    with pytest.raises(BadArchive, match="it holds over 10 entries"):
        unpacked(str(pack(big, tmp_path / f"many{suffix}")), str(cache), limits=Limits(entries=10))
    assert os.listdir(cache) == []


@pytest.mark.parametrize("name", ["nvx.tar.gz", "nvx.zip"])
def test_a_damaged_archive_is_refused_wherever_the_damage_is(
    whole: Path, tmp_path: Path, cache: Path, name: str
) -> None:
    raw = pack(whole, tmp_path / name).read_bytes()
    damaged = tmp_path / f"damaged-{name}"
    spoiled = [raw[:cut] for cut in range(0, len(raw) - 1, max(1, len(raw) // 12))]
    spoiled += [raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :] for at in range(100, len(raw) - 100, len(raw) // 9)]
    for data in spoiled:
        damaged.write_bytes(data)
        try:
            root = Path(unpacked(str(damaged), str(cache)))
        except BadArchive as error:
            assert "\n" not in str(error)  # noqa: PT017 - either way is right, and each has its own judgement
            continue
        # What a flipped bit didn't reach is all there, as its digests say.
        assert (root / "guest/vmlinux").read_bytes() == (whole / "guest/vmlinux").read_bytes()
    assert not [name for name in os.listdir(cache) if name.startswith(".")]


@pytest.mark.parametrize("fault", ["changed", "missing", "malformed", "elsewhere"])
def test_an_archive_must_hold_what_its_digests_say(whole: Path, tmp_path: Path, cache: Path, fault: str) -> None:
    stated = whole / "SHA256SUMS"
    if fault == "changed":
        (whole / "guest/vmlinux").write_bytes(b"another kernel")
    elif fault == "missing":
        (whole / "guest/vmlinux").unlink()
    elif fault == "malformed":
        stated.write_text("no digest\n")
    else:
        stated.write_text(f"{'0' * 64}  ../whole/guest/vmlinux\n")
    said = {
        "changed": "the SHA-256 of its guest/vmlinux is",
        "missing": "names guest/vmlinux, which it doesn't hold",
        "malformed": "line 1 isn't a digest and a name",
        "elsewhere": "line 1 isn't a digest and a name",
    }[fault]
    with pytest.raises(BadArchive, match=said):
        unpacked(str(pack(whole, tmp_path / "nvx.tar.gz")), str(cache))
    assert os.listdir(cache) == []


def test_what_is_no_archive_is_told_by_its_name(tmp_path: Path, cache: Path) -> None:
    for name, said in {"nvx.rar": "an archive ends in", "none.zip": "it can't be read: No such file"}.items():
        if name == "nvx.rar":
            (tmp_path / name).write_bytes(b"x")
        with pytest.raises(BadArchive, match=said):
            unpacked(str(tmp_path / name), str(cache))
    (tmp_path / "nvx.tar.gz").write_bytes(gzip.compress(b"no tar"))
    with pytest.raises(BadArchive, match=r"it is damaged|holds no SHA256SUMS"):
        unpacked(str(tmp_path / "nvx.tar.gz"), str(cache))
