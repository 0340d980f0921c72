"""Goldens: what differs from run to run has a name, what differs otherwise is shown, and history is never rewritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.goldens import Goldens

RECORD = """{
  "format": 1,
  "launchId": "0123456789abcdef0123456789abcdef",
  "process": {
    "pid": 4711,
    "startTime": 99,
    "boot": "3c9b1f5e-62ab-4d15-9f0a-1b6f2a7d4e55",
    "pidfsInode": 12
  },
  "endpoint": "/tmp/nvx-12345678/1.0/s/box/control.sock",
  "log": {
    "volume": "fe00",
    "file": "1a2b"
  },
  "openvmm": "sha256:0000000000000000000000000000000000000000000000000000000000000000"
}
"""

NORMAL = """{
  "format": 1,
  "launchId": "<ID>",
  "process": {
    "pid": <NUMBER>,
    "startTime": <NUMBER>,
    "boot": <BOOT>
  },
  "endpoint": "<ROOT>/s/box/control.sock",
  "log": {
    "volume": <NUMBER>,
    "file": <NUMBER>
  },
  "openvmm": "sha256:<DIGEST>"
}
"""


def test_what_differs_from_run_to_run_gets_a_name(tmp_path: Path) -> None:
    goldens = Goldens(str(tmp_path))
    goldens.name("/tmp/nvx-12345678", "<SESSION>")
    goldens.name("/tmp/nvx-12345678/1.0", "<ROOT>")
    assert goldens.normal(RECORD) == NORMAL


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("distro:file:/proc/self/fd/17,ro", "distro:file:/proc/self/fd/<N>,ro"),
        ("killed pid 12 after 1.203 s", "killed pid <PID> after <SECONDS>"),
        ("left .tmpa1B2c3 there", "left .tmp<6> there"),
        ("nvx_layer=distro,0xd0003000,erofs:11111111-1111-1111-1111-111111111111", None),
        ("status 125, 2048 bytes, format 1", None),
    ],
)
def test_a_name_stands_for_what_varies_and_for_nothing_else(tmp_path: Path, text: str, normal: str | None) -> None:
    assert Goldens(str(tmp_path)).normal(text) == (normal or text)


def test_a_difference_is_shown_as_a_diff(tmp_path: Path) -> None:
    (tmp_path / "cli.txt").write_text("status 0\nstdout live\n")
    goldens = Goldens(str(tmp_path))
    goldens.check("cli.txt", ["status 0", "stdout live"])
    with pytest.raises(AssertionError) as error:
        goldens.check("cli.txt", ["status 0", "stdout exited"])
    assert str(error.value).splitlines()[1:] == [
        "--- goldens/cli.txt",
        "+++ found",
        "@@ -1,2 +1,2 @@",
        " status 0",
        "-stdout live",
        "+stdout exited",
    ]


def test_a_missing_golden_is_a_failure_and_not_a_pass(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"no golden a/b\.txt"):
        Goldens(str(tmp_path)).check("a/b.txt", "x")


def test_lines_that_can_t_be_seen_are_left_out_of_the_golden_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("virtnet_ip=1\n--net 1\nvirtnet_gw=2\n")
    goldens = Goldens(str(tmp_path))
    goldens.check("x.txt", ["--net 1"], unseen="virtnet_")
    for found, unseen in ((["--net 2"], "virtnet_"), (["--net 1"], ""), (["--net 1"], "virtnet_ip"), ([], "virtnet_")):
        with pytest.raises(AssertionError, match=r"differs from its golden x\.txt"):
            goldens.check("x.txt", found, unseen=unseen)
    # A golden that was seen in part isn't rewritten.
    Goldens(str(tmp_path), update=True).check("x.txt", ["--net 1"], unseen="virtnet_")
    assert (tmp_path / "x.txt").read_text().startswith("virtnet_ip")


def test_goldens_are_written_on_request_only_and_then_equal(tmp_path: Path) -> None:
    Goldens(str(tmp_path), update=True).check("a/b.txt", "pid 7")
    assert (tmp_path / "a" / "b.txt").read_text() == "pid <PID>\n"
    Goldens(str(tmp_path)).check("a/b.txt", "pid 8")


def test_a_backend_writes_its_own_and_reads_the_nearest(tmp_path: Path) -> None:
    Goldens(str(tmp_path), update=True).check("x.txt", "all say this")
    whp = ("whp", "windows")
    Goldens(str(tmp_path), update=True, own=("windows",)).check("x.txt", "Windows says this")
    Goldens(str(tmp_path), own=whp).check("x.txt", "Windows says this")
    Goldens(str(tmp_path), update=True, own=whp).check("x.txt", "Windows says this")
    assert not (tmp_path / "whp").exists()
    Goldens(str(tmp_path), update=True, own=whp).check("x.txt", "a real one says this")
    Goldens(str(tmp_path), own=whp).check("x.txt", "a real one says this")
    Goldens(str(tmp_path), own=("windows",)).check("x.txt", "Windows says this")
    Goldens(str(tmp_path), own=("kvm",)).check("x.txt", "all say this")
    with pytest.raises(AssertionError, match=r"differs from its golden x\.txt"):
        Goldens(str(tmp_path), own=("kvm",)).check("x.txt", "Windows says this")
    # What is the same again has no text of its own.
    Goldens(str(tmp_path), update=True, own=whp).check("x.txt", "Windows says this")
    assert not (tmp_path / "whp" / "x.txt").exists()
    assert (tmp_path / "x.txt").read_text() == "all say this\n"


def test_records_of_released_formats_are_never_rewritten(tmp_path: Path) -> None:
    kept = tmp_path / "store" / "v1" / "runtime.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("old\n")
    with pytest.raises(HarnessError, match="never rewritten"):
        Goldens(str(tmp_path), update=True).check("store/v1/runtime.json", "new")
    assert kept.read_text() == "old\n"
