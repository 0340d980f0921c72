"""Runs of the stand-in without an interpreter start each: one prepared process forks for every run.

A table of six hundred command lines costs a tenth of what as many starts would; the tests beside it start processes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.openvmm_stand import CAPABILITY, ROOT, STILL, Outcome, Stand

PREPARED = """
import json, os, socket, sys, types
sys.path[:0] = [{root!r}]
import resource, fcntl, ctypes
from fake_openvmm import blocks, netgrammar, program, sharegrammar, shares, sidefile, tricks
guest = types.ModuleType("fake_openvmm.guest")
exec({guest!r}, guest.__dict__)
sys.modules["fake_openvmm.guest"] = guest
channel = socket.socket(fileno=int(sys.argv[1]))
while True:
    data, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 2)
    if not data:
        break
    request = json.loads(data)
    child = os.fork()
    if child == 0:
        channel.close()
        for number, descriptor in enumerate([descriptors[0], descriptors[1], descriptors[1]]):
            os.dup2(descriptor, number)
        for descriptor in descriptors:
            os.close(descriptor)
        os.chdir(request["cwd"])
        program.start(request["argv"], request["side"])
    for descriptor in descriptors:
        os.close(descriptor)
    _, status = os.waitpid(child, 0)
    channel.sendall(b"%d\\n" % os.waitstatus_to_exitcode(status))
"""


class Forks:
    """The prepared process of one test session."""

    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.channel.settimeout(60)
        text = PREPARED.format(root=str(ROOT), guest=STILL)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", text, str(theirs.fileno())], pass_fds=[theirs.fileno()]
        )
        theirs.close()

    def run(self, stand: Stand, changes: str, *, side: dict[str, Any] | None = None) -> Outcome:
        """Do what `Stand.run` does."""
        reader, writer = os.pipe()
        os.write(writer, CAPABILITY)
        os.close(writer)
        side_path = None
        if side is not None:
            side_path = str(stand.path / "side.json")
            Path(side_path).write_text(json.dumps({"token": stand.token, "evidence": str(stand.path), **side}))
        request = {"argv": stand.argv(changes), "cwd": str(stand.path), "side": side_path}
        with open(stand.path / "openvmm.log", "ab") as log:
            socket.send_fds(self.channel, [json.dumps(request).encode()], [reader, log.fileno()])
        os.close(reader)
        status = int(self.channel.recv(100))
        return Outcome(stand, status, stand.log())

    def close(self) -> None:
        self.channel.close()
        self.process.wait(60)
