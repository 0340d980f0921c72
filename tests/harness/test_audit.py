"""What Python reports of writes and locks, under names that are the same in every run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness import python
from harness.sut.audit import Points
from harness.sut.naming import Namer, point

BODY = """
import fcntl, os, socket, subprocess
from harness.sut import audit

points = audit.Points(ROOT, "box")
heard = []

def hear(event, arguments):
    open(os.path.join(ROOT, "the listener's own"), "w").close()
    name = points.name(event, arguments)
    if name:
        heard.append(name)

box = os.path.join(ROOT, "box")
os.mkdir(box)
audit.listen(hear)
place = os.open(box, os.O_RDONLY)
name = ".launch.json." + os.urandom(16).hex() + ".tmp"
fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=place)
os.write(fd, b"{}")
os.fchmod(fd, 0o600)
os.fsync(fd)
fcntl.flock(fd, fcntl.LOCK_EX)
fcntl.fcntl(fd, fcntl.F_GETFD)
os.ftruncate(fd, 0)
os.close(fd)
os.rename(name, "launch.json", src_dir_fd=place, dst_dir_fd=place)
os.unlink("launch.json", dir_fd=place)
open(os.path.join(box, "read"), "w").close()
open(os.path.join(box, "read")).close()
with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
    for _ in range(3):
        try:
            client.connect(os.path.join(box, "control.sock"))
        except FileNotFoundError:
            pass
    server.bind(os.path.join(box, "control.sock"))
# Of a program without a directory Python 3.13 tells twice.
subprocess.run([sys.executable, "-I", "-c", ""], cwd="/")
os.mkdir(os.path.join(ROOT, "other"))
os.rmdir(os.path.join(ROOT, "other"))
audit.listen(None)
print(*heard, sep="\\n")
"""

HEARD = """
open:.launch.json.ID.tmp
chmod:.launch.json.ID.tmp
flock:.launch.json.ID.tmp
truncate:.launch.json.ID.tmp
rename:.launch.json.ID.tmp,launch.json
remove:launch.json
open:read
connect:control.sock
bind:control.sock
spawn:{python}
mkdir:../other
rmdir:../other
"""


def test_events_are_named_by_what_they_are_about_and_reads_are_none(tmp_path: Path) -> None:
    script = python.write_script(
        str(tmp_path / "s.py"), packages=("harness",), body=f"ROOT = {str(tmp_path)!r}\n{BODY}"
    )
    said = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert said.split() == HEARD.format(python=Path(python.interpreter()).name).split()


def test_events_of_another_kind_are_no_points() -> None:
    points = Points("/r", "box")
    assert points.name("import", ("os",)) is None
    assert points.name("open", ("x", "r", 0)) is None


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/w/s/box", "."),
        ("/w/s/box/runtime.json", "runtime.json"),
        ("/w/s/box/.tmpaB3xYz", ".tmpXXXXXX"),
        ("/w/s/box/openvmm.log (deleted)", "openvmm.log"),
        ("/w/s", ".."),
        ("/w/s/other", "../other"),
        ("/w/images/box.ext4", "~/images/box.ext4"),
        ("/elsewhere/a b'#c", "/elsewhere/a_b__c"),
        ("/proc/4711/stat", "/proc/PID/stat"),
        ("/proc/self/fd/17", "/proc/self/fd/N"),
        ("pipe:[123]", "pipe"),
        ("socket:[123]", "socket"),
        ("anon_inode:[pidfd]", "pidfd"),
        ("pidfd:[99]", "pidfd"),
    ],
)
def test_names_hold_nothing_that_differs_from_run_to_run(path: str, name: str) -> None:
    assert Namer("/w/s", "box").path(path) == name


def test_a_point_of_several_objects_names_them_all() -> None:
    assert point("rename", "a", "b") == "rename:a,b"
