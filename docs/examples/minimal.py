"""The least that the harness can judge: a program that speaks the protocol. Start here, then write your own."""

import json
import os
import pathlib
import shutil
import subprocess
import sys


class Failure(Exception):
    """The code, and one line for a person."""


def say(**message):
    print(json.dumps(message), flush=True)


def step(name):
    say(id=request["id"], step=name, hit=1)
    if request.get("exit") == [name, 1]:
        os._exit(77)
    if request.get("pause") == [name, 1] and not sys.stdin.readline():
        os._exit(77)


def provision(box, args):
    if box.exists():
        raise Failure("AlreadyExists", f"{box}: is there already")
    box.mkdir(mode=0o700)
    (box / "wanted.json").write_text(json.dumps(args))


def require_stopped(box, args):
    if (verdict := status(box, args)["verdict"]) in {"live", "indeterminate"}:
        raise Failure("AlreadyExists" if verdict == "live" else "Indeterminate", f"{box}: its VM may run")


def start(box, args):
    require_stopped(box, args)
    wanted = json.loads((box / "wanted.json").read_text())
    upper = "nvx_scratch=0xd0006000,ext4" if "scratch" in wanted else "nvx_overlay_upper=ramfs"
    line = f"nvx_sandbox=1 nvx_layer=distro,0xd0003000,{wanted['format']} {upper}"
    options = ["--machine", "microvm", "--single-process", "--memory", "256M", "--microvm-lifecycle", "managed"]
    options += ["--microvm-sandbox-block", f"distro:file:{wanted['distro']},ro"]
    options += ["--microvm-sandbox-block", f"scratch:file:{wanted['scratch']}"] if "scratch" in wanted else []
    options += ["--microvm-workload-identity", "65534:65534", "--hypervisor", wanted["hypervisor"]]
    options += ["--kernel", wanted["kernel"], "--initrd", wanted["initrd"], "--virtio-console", "none"]
    options += ["--cmdline", f"{line} nvx_entrypoint=/bin/sh nvx_hostname=minimal", "--microvm-control-auth-stdin"]
    options += ["--microvm-control-console", f"listen={box}/vm.sock", "--microvm-report", f"{box}/report.json"]
    secret, writer = os.pipe()
    os.write(writer, os.urandom(32))
    os.close(writer)
    with open(box / "vm.log", "ab") as log:
        vmm = subprocess.Popen([*wanted["openvmm"], *options], stdin=secret, stdout=log, stderr=log)
    os.close(secret)
    step("start.spawned")
    (box / "vm.pid").write_text(str(vmm.pid))


def status(box, args):
    if not box.exists():
        raise Failure("NotFound", f"{box}: no such sandbox")
    if not (box / "vm.pid").exists():
        return {"verdict": "stopped"}
    return {"verdict": "live" if os.path.exists(f"/proc/{(box / 'vm.pid').read_text()}") else "exited"}


def deprovision(box, args):
    require_stopped(box, args)
    shutil.rmtree(box)


OPERATIONS = {"provision": provision, "start": start, "status": status, "reattach": status, "deprovision": deprovision}
HELLO = {"protocol": 1, "operations": [*OPERATIONS], "steps": ["start.spawned"], "needs": ["scratch"], "ways": ["exit"]}
say(hello=HELLO)
for text in sys.stdin:
    request = json.loads(text)
    sandbox = pathlib.Path(request["args"]["root"], request["args"]["name"])
    try:
        say(id=request["id"], ok=True, result=OPERATIONS[request["op"]](sandbox, request["args"]) or {})
    except Failure as failure:
        say(id=request["id"], ok=False, code=failure.args[0], message=failure.args[1])
