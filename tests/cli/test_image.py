"""``nvx-ref image`` on its own, and the verification that ``provision`` and ``run`` do by themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from harness import images

LAYER = ("--format", "erofs")


def nvx_ref(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nvx_ref", *words], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def distro(tmp_path: Path) -> Path:
    return Path(images.unpack(str(tmp_path / "images")).erofs)


def write_manifest(distro: Path) -> None:
    digest = sha256(distro.read_bytes()).hexdigest()
    manifest = {"format": 1, "artifact": distro.name, "artifact_sha256": digest, "packages": []}
    path = distro.with_name(distro.name + ".manifest.json")
    path.write_text(json.dumps(manifest))
    path.chmod(0o400)


@pytest.mark.spec("622p1.goal.2", "622p1.scope9", "622p1.scope4.a")
def test_looking_verifying_and_binding_are_operations_of_their_own(distro: Path) -> None:
    distro.parent.chmod(0o700)
    distro.chmod(0o400)
    write_manifest(distro)
    before = {path: path.stat().st_mtime_ns for path in distro.parent.iterdir()}
    seen = json.loads(nvx_ref("image", "inspect", str(distro), *LAYER).stdout)
    assert seen["identity"] == images.EROFS_UUID
    said = nvx_ref("image", "verify", str(distro), *LAYER).stdout
    assert said == f"accepted; {distro.stat().st_size} bytes hashed\n"
    named = (str(distro), *LAYER, "--identity", images.EROFS_UUID)
    verified = json.loads(nvx_ref("image", "bind", *named).stdout)
    assert verified["identity"] == images.EROFS_UUID
    assert json.loads(nvx_ref("image", "bind", *named, "--staged").stdout) == verified
    assert {path: path.stat().st_mtime_ns for path in distro.parent.iterdir()} == before


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("", "D\u0142ugi \U0001f600".encode()), ("cp1252", rb"D\u0142ugi \U0001f600")],
    ids=["usual", "code page"],
)
def test_a_path_that_the_output_has_no_characters_for_is_no_traceback(
    distro: Path, encoding: str, shown: bytes
) -> None:
    """What reads the output takes it for UTF-8, on Windows too; a user who wants another gets that."""
    odd = distro.with_name("D\u0142ugi \U0001f600")
    distro.rename(odd)
    write_manifest(odd)
    command = [sys.executable, "-m", "nvx_ref", "image", "bind", str(odd), *LAYER]
    variables = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    run = subprocess.run(command, capture_output=True, check=False, timeout=60, env=variables)
    assert run.returncode == 0, run.stderr
    assert shown in run.stdout


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a POSIX terminal")
@pytest.mark.parametrize("words", [("verify",), ("bind",)])
def test_a_verification_shows_how_far_it_is_on_a_terminal(distro: Path, words: tuple[str, ...]) -> None:
    write_manifest(distro)
    ours, theirs = os.openpty()
    try:
        with os.fdopen(theirs, "wb") as terminal:
            command = [sys.executable, "-m", "nvx_ref", "image", *words, str(distro), *LAYER]
            run = subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, check=True, timeout=60)
        assert b"%" not in run.stdout
        shown = b""
        # A terminal gives what was written in pieces of its own choice.
        while not shown.endswith(b"\n"):
            shown += os.read(ours, 1 << 12)
        assert shown == b"\rhashed 100%\r\n"
    finally:
        os.close(ours)


@pytest.mark.spec("622p1.goal.3", "622p1.goal.2")
@pytest.mark.parametrize("command", ["provision", "run", "run --dry-run", "image verify"])
def test_a_manifest_beside_a_distro_is_verified(distro: Path, tmp_path: Path, command: str) -> None:
    artifacts = images.write_artifacts(str(tmp_path / "artifacts"))
    write_manifest(distro)
    distro.chmod(0o644)
    with distro.open("ab") as layer:
        layer.write(b"x")
    words = [str(distro), *LAYER]
    if command != "image verify":
        words = ["--distro", *words, "--ram-upper", "--artifacts", artifacts.directory]
    if command == "provision":
        words += ["--state-dir", str(tmp_path / "state" / "box")]
    refused = nvx_ref(*command.split(), *words)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "the layer isn't the one that its manifest describes" in refused.stderr
    assert not (tmp_path / "state").exists()
