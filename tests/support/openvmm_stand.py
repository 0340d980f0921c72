"""A place to start the stand-in from: private directory, artifacts, a launcher with a guest that does nothing."""

from __future__ import annotations

import json
import os
import re
import shlex
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHI", 2, 0x3E, 1)
CALLER = (
    "nvx_sandbox=1 nvx_layer=distro,0xd0003000,erofs:11111111-1111-1111-1111-111111111111 "
    "nvx_scratch=0xd0006000,ext4 nvx_entrypoint=/bin/sh nvx_hostname=nvx-sandbox"
)
CAPABILITY = bytes(range(1, 33))

LAUNCHER = """import sys
sys.path[:0] = [{root!r}]
if {still}:
    import types
    guest = types.ModuleType("fake_openvmm.guest")
    exec({guest!r}, guest.__dict__)
    sys.modules["fake_openvmm.guest"] = guest
from fake_openvmm import main
main(side_file={side!r})
"""


STILL = """
def run(config, opened, tools):
    tools.console(b"hello from hvc1\\n")
    return tools.knobs.integer("exit_code", 0)
"""


class Outcome:
    """What one run left behind."""

    def __init__(self, stand: Stand, status: int, log: str) -> None:
        self.status = status
        self.log = log
        self.report_path = stand.path / "outcome.json"
        self.report: dict[str, Any] | None = None
        if self.report_path.exists():
            self.report = json.loads(self.report_path.read_text())
        self.socket_left = (stand.path / "control.sock").exists()

    @property
    def category(self) -> str | None:
        return self.report["outcome"]["category"] if self.report else None


class Stand:
    """A state directory of mode 0700 with a kernel, an initramfs and two disks."""

    def __init__(self, path: Path, *, still_guest: bool = True) -> None:
        self.path = path
        self.still_guest = still_guest
        os.chmod(path, 0o700)
        (path / "kernel").write_bytes(ELF)
        (path / "initrd").write_bytes(b"initramfs")
        (path / "distro").write_bytes(bytes(4096))
        (path / "scratch").write_bytes(bytes(4096))
        self.guest = STILL
        self.process: subprocess.Popen[bytes] | None = None
        self.token = path.name

    def base(self) -> list[tuple[str, str | None]]:
        """A managed launch in the launcher's order: every rule is one change away from it."""
        at = self.path
        return [
            ("machine", "microvm"),
            ("microvm-sandbox-block", f"distro:file:{at}/distro,ro"),
            ("microvm-sandbox-block", f"scratch:file:{at}/scratch"),
            ("microvm-workload-identity", "65534:65534"),
            ("microvm-lifecycle", "managed"),
            ("single-process", None),
            ("hypervisor", "kvm"),
            ("memory", "256M"),
            ("kernel", f"{at}/kernel"),
            ("initrd", f"{at}/initrd"),
            ("cmdline", CALLER),
            ("virtio-console", "none"),
            ("microvm-control-console", f"listen={at}/control.sock"),
            ("microvm-control-auth-stdin", None),
            ("microvm-report", f"{at}/outcome.json"),
        ]

    def argv(self, changes: str = "") -> list[str]:
        """The base with `changes`: `~name` drops an option, `name=value` replaces it, `+name=value` adds one more.

        Every change is one shell word; `@` stands for the state directory. A word that starts with `!` is passed as is.
        """
        options = self.base()
        raw: list[str] = []
        for change in shlex.split(changes.replace("@", str(self.path))):
            if change.startswith("!"):
                raw.append(change[1:])
                continue
            name, equals, value = change.lstrip("~+").partition("=")
            if not change.startswith("+"):
                options = [option for option in options if option[0] != name]
            if not change.startswith("~"):
                options.append((name, value if equals else None))
        words = [word for name, value in options for word in ([f"--{name}"] if value is None else [f"--{name}", value])]
        return words + raw

    def command(self, side: dict[str, Any] | None = None) -> list[str]:
        side_path = None
        if side is not None:
            side_path = str(self.path / "side.json")
            Path(side_path).write_text(json.dumps({"token": self.token, "evidence": str(self.path), **side}))
        launcher = self.path / "launch.py"
        text = LAUNCHER.format(root=str(ROOT), side=side_path, still=self.still_guest, guest=self.guest)
        launcher.write_text(text)
        return [sys.executable, "-I", str(launcher)]

    def start(
        self, argv: list[str], *, stdin: int | bytes = CAPABILITY, side: dict[str, Any] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start it with the log in `openvmm.log`; bytes for `stdin` go into a pipe whose writers are closed."""
        if isinstance(stdin, bytes):
            reader, writer = os.pipe()
            os.write(writer, stdin)
            os.close(writer)
        else:
            reader = stdin
        with open(self.path / "openvmm.log", "ab") as log:
            self.process = subprocess.Popen(
                self.command(side) + argv, stdin=reader, stdout=log, stderr=log, cwd=self.path, **options
            )
        if isinstance(stdin, bytes):
            os.close(reader)
        return self.process

    def finish(self) -> Outcome:
        assert self.process is not None
        status = self.process.wait(60)
        self.process = None
        return Outcome(self, status, self.log())

    def log(self) -> str:
        return (self.path / "openvmm.log").read_text(errors="surrogateescape")

    def run(self, changes: str = "", **options: Any) -> Outcome:
        self.start(self.argv(changes), **options)
        return self.finish()

    def evidence(self, kind: str | None = None) -> list[dict[str, Any]]:
        lines = [line for path in self.path.glob("*.jsonl") for line in path.read_text().splitlines(keepends=True)]
        # The last line may still be on its way.
        events: list[dict[str, Any]] = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if kind in (None, event["kind"])]

    def cmdline(self) -> str:
        """The effective command line of the last run, which needs a side file."""
        return str(self.evidence("cmdline")[-1]["text"])


def made(*, still_guest: bool = True, kind: type[Stand] = Stand) -> Iterator[Stand]:
    """A stand below a short path, gone afterwards together with what still runs in it."""
    with tempfile.TemporaryDirectory(prefix="fo") as directory:
        stand = kind(Path(directory), still_guest=still_guest)
        try:
            yield stand
        finally:
            if stand.process is not None:
                stand.process.kill()
                stand.process.wait()


LINE = re.compile(r"^ {0,3}\d{1,4}\.\d{9}s (TRACE|DEBUG| INFO| WARN|ERROR) [a-z_:]+: .+$")
