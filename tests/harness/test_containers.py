"""Scenarios in a container: which daemon is taken, how the container is closed, and that it is always removed."""

from __future__ import annotations

import io
import json
import os
import re
import socketserver
import struct
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from harness import containers
from harness.containers import CONTAINERFILE, Daemon, Job
from harness.errors import HarnessError, Unavailable

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the daemon listens on a UNIX socket")

ROOT = Path(__file__).resolve().parents[2]


class Made:
    """A container of a made-up client."""

    def __init__(self, *, fails: str = "", status: object = 0) -> None:
        self.fails = fails
        self.status = status
        self.removed = False

    def _may(self, what: str) -> None:
        if self.fails == what:
            raise KeyboardInterrupt if what == "ctrl-c" else RuntimeError(f"{what} fails\nwith a second line")

    def start(self) -> None:
        self._may("start")

    def logs(self, *, stream: bool, follow: bool) -> Iterator[bytes]:
        assert (stream, follow) == (True, True)
        yield b"one "
        self._may("logs")
        self._may("ctrl-c")
        yield b"two"

    def wait(self) -> dict[str, object]:
        return {"StatusCode": self.status}

    def get_archive(self, path: str) -> tuple[list[bytes], object]:
        self._may("report")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            info = tarfile.TarInfo(os.path.basename(path))
            info.size = 3
            tar.addfile(info, io.BytesIO(b"{}\n"))
        raw = packed.getvalue()
        return [raw[:100], raw[100:]], {}

    def remove(self, *, force: bool, v: bool) -> None:
        assert (force, v) == (True, True)
        self.removed = True


class Client:
    """A made-up client of the SDK."""

    def __init__(self, container: Made | None = None, **info: object) -> None:
        self.said = info
        self.created: list[tuple[str, list[str], dict[str, object]]] = []
        self._container = container or Made()
        self.containers = self
        self.images = self

    def info(self) -> dict[str, object]:
        if "error" in self.said:
            raise RuntimeError(str(self.said["error"]))
        return self.said

    def create(self, image: str, command: list[str], **options: object) -> Made:
        self.created.append((image, command, options))
        return self._container

    def build(self, **options: Any) -> object:
        raise AssertionError(options)


ROOTLESS = {"SecurityOptions": ["name=seccomp,profile=builtin", "name=rootless", "name=cgroupns"], "InitBinary": "x"}
ROOTFUL = {"SecurityOptions": ["name=seccomp,profile=builtin"]}


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    place = tmp_path / "run"
    (place / "podman").mkdir(parents=True)
    return place


def connected(runtime: Path, answers: dict[str, Client], monkeypatch: pytest.MonkeyPatch) -> Daemon:
    for name in answers:
        (runtime / name).touch()
    places = [f"unix://{runtime}/docker.sock", f"unix://{runtime}/podman/podman.sock", f"unix://{runtime}/root.sock"]
    monkeypatch.setattr(containers, "addresses", lambda _: places)
    return containers.connect({}, lambda address, _: answers[address.removeprefix(f"unix://{runtime}/")])


def test_a_rootless_daemon_goes_first(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"docker.sock": Client(**ROOTFUL), "root.sock": Client(**ROOTLESS)}
    found = connected(runtime, answers, monkeypatch)
    assert (found.address, found.rootless, found.has_init) == (f"unix://{runtime}/root.sock", True, True)


def test_a_daemon_of_root_is_taken_where_no_other_answers(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"docker.sock": Client(error="refused"), "podman/podman.sock": Client(**ROOTFUL)}
    found = connected(runtime, answers, monkeypatch)
    assert (found.address, found.rootless, found.has_init) == (f"unix://{runtime}/podman/podman.sock", False, False)


def test_without_a_daemon_each_address_is_named_with_what_is_wrong(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Unavailable) as error:
        connected(runtime, {"docker.sock": Client(error="denied\nmore")}, monkeypatch)
    assert f"{runtime}/docker.sock (denied)" in str(error.value)
    assert f"{runtime}/root.sock (there is no such socket)" in str(error.value)
    assert "\n" not in str(error.value)


def test_docker_host_alone_is_asked_where_it_is_set() -> None:
    assert containers.addresses({"DOCKER_HOST": "tcp://there:1"}) == ["tcp://there:1"]
    found = containers.addresses({"XDG_RUNTIME_DIR": "/run/user/7"})
    assert found[0] == "unix:///run/user/7/docker.sock"
    assert found.index("unix:///run/user/7/podman/podman.sock") < found.index("unix:///var/run/docker.sock")


def on(client: Client, *, rootless: bool = True) -> Daemon:
    return Daemon("unix:///d", client, rootless, has_init=False)


def test_a_job_runs_in_a_container_that_is_closed_and_removed(tmp_path: Path) -> None:
    made = Made(status=5)
    client = Client(made)
    output, report = io.BytesIO(), tmp_path / "report.json"
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    job = Job(("-m", "c6"), artifacts=str(artifacts), image="some")
    assert containers.run(on(client), job, output=output, report=str(report)) == 5
    assert (output.getvalue(), report.read_text(), made.removed) == (b"one two", "{}\n", True)
    ((image, command, options),) = client.created
    assert (image, command) == ("some", ["-m", "c6", "--nvx-report", containers.REPORT])
    assert options["volumes"] == {str(artifacts): {"bind": "/artifacts", "mode": "ro"}}
    assert options["environment"] == {"NVX_ARTIFACTS_DIR": "/artifacts"}
    assert options["network_mode"] == "none"
    assert options["cap_drop"] == ["ALL"]
    # Its own PID space is what a daemon gives unless it is told otherwise.
    assert not {"pid_mode", "privileged", "cap_add", "ipc_mode"} & set(options)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("rootless", [True, False])
def test_kvm_is_passed_where_this_user_has_it(monkeypatch: pytest.MonkeyPatch, *, there: bool, rootless: bool) -> None:
    monkeypatch.setattr(containers, "KVM", os.devnull if there else "/dev/none")
    found = containers.options(on(Client(), rootless=rootless), Job())
    assert found.get("devices") == (["/dev/null:/dev/null:rw"] if there else None)
    assert ("user" in found) is (there and rootless)
    assert ("group_add" in found) is (there and not rootless)


def test_an_archive_of_a_release_is_seen_under_its_name(tmp_path: Path) -> None:
    archive = tmp_path / "nvx-0.1.0-linux-kvm.tar.gz"
    archive.touch()
    found = containers.options(on(Client()), Job(artifacts=str(archive)))
    assert found["environment"] == {"NVX_ARTIFACTS_DIR": f"/artifacts/{archive.name}"}
    with pytest.raises(HarnessError, match="--artifacts /none: there is no such file or directory"):
        containers.options(on(Client()), Job(artifacts="/none"))


@pytest.mark.parametrize("fails", ["start", "logs", "report", "status", "ctrl-c"])
def test_a_container_is_removed_however_it_ends(tmp_path: Path, fails: str) -> None:
    made = Made(fails=fails, status=None if fails == "status" else 0)
    kind = KeyboardInterrupt if fails == "ctrl-c" else HarnessError
    with pytest.raises(kind) as error:
        containers.run(on(Client(made)), Job(), output=io.BytesIO(), report=str(tmp_path / "report.json"))
    assert made.removed
    assert "\n" not in str(error.value)


class Handler(BaseHTTPRequestHandler):
    """The daemon's HTTP interface, as far as the SDK uses it here."""

    protocol_version = "HTTP/1.1"
    server: Any

    def address_string(self) -> str:
        return "a UNIX socket"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, body: bytes, kind: str = "application/json", status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def handle_one(self, method: str) -> None:
        path = re.sub(r"^/v[\d.]+", "", self.path.partition("?")[0])
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else self._chunks()
        self.server.calls.append((method, path, body))
        container = {"Id": "c0ffee", "Name": "/c", "Config": {"Tty": False}, "HostConfig": {"LogConfig": {"Type": "x"}}}
        said = b"from the container\n"
        replies: dict[tuple[str, str], bytes] = {
            ("GET", "/_ping"): b"OK",
            ("GET", "/version"): json.dumps({"ApiVersion": "1.43", "MinAPIVersion": "1.24"}).encode(),
            ("GET", "/info"): json.dumps(ROOTLESS).encode(),
            ("POST", "/containers/create"): json.dumps({"Id": "c0ffee", "Warnings": []}).encode(),
            ("GET", "/containers/c0ffee/json"): json.dumps(container).encode(),
            ("POST", "/containers/c0ffee/start"): b"",
            ("GET", "/containers/c0ffee/logs"): struct.pack(">BxxxL", 1, len(said)) + said,
            ("POST", "/containers/c0ffee/wait"): b'{"StatusCode": 3}',
            ("DELETE", "/containers/c0ffee"): b"",
            ("POST", "/build"): b'{"stream": "Step 1 : FROM nothing"}\r\n{"error": "no such image"}\r\n',
        }
        if (method, path) not in replies:
            self.answer(b'{"message": "no such thing"}', status=404)
            return
        kind = "application/vnd.docker.raw-stream" if path.endswith("/logs") else "application/json"
        self.answer(replies[method, path], kind)

    def _chunks(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return b""
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def do_GET(self) -> None:
        self.handle_one("GET")

    def do_POST(self) -> None:
        self.handle_one("POST")

    def do_DELETE(self) -> None:
        self.handle_one("DELETE")


@contextmanager
def daemon(path: str) -> Iterator[list[tuple[str, str, bytes]]]:
    """Serve the daemon's interface on a UNIX socket; what was asked is in the list."""

    class Server(socketserver.ThreadingUnixStreamServer):
        calls: list[tuple[str, str, bytes]]
        daemon_threads = True

    with Server(path, Handler) as server:
        server.calls = []
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.calls
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def socket_path() -> Iterator[str]:
    import tempfile  # noqa: PLC0415 - a short path is what this is about

    with tempfile.TemporaryDirectory(prefix="nvx-d-", dir="/tmp") as place:
        yield f"{place}/d.sock"


def test_the_real_sdk_speaks_to_a_daemon(socket_path: str) -> None:
    pytest.importorskip("docker", reason="needs the docker SDK (pip install docker)")
    with daemon(socket_path) as calls:
        found = containers.connect({"DOCKER_HOST": f"unix://{socket_path}"})
        assert (found.rootless, found.has_init) == (True, True)
        output = io.BytesIO()
        assert containers.run(found, Job(("-k", "it")), output=output) == 3
        assert output.getvalue() == b"from the container\n"
        with pytest.raises(HarnessError, match="the image isn't built: no such image") as error:
            containers.build(found, str(ROOT))
        assert str(error.value).endswith("Step 1 : FROM nothing")
    created = json.loads(next(body for method, path, body in calls if path == "/containers/create"))
    assert created["Cmd"] == ["-k", "it"]
    assert created["HostConfig"]["NetworkMode"] == "none"
    assert created["HostConfig"]["Init"] is True
    assert "PidMode" not in created["HostConfig"]
    assert ("DELETE", "/containers/c0ffee") in [call[:2] for call in calls]
    sent = next(body for method, path, body in calls if path == "/build")
    with tarfile.open(fileobj=io.BytesIO(sent)) as tar:
        names = tar.getnames()
    assert CONTAINERFILE in names
    assert "harness/containers.py" in names
    assert not [name for name in names if name.startswith((".venv", ".git/"))]


def nvx_harness(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", "container", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=60
    )


def test_the_command_gives_pytest_s_words_and_its_status(socket_path: str) -> None:
    pytest.importorskip("docker", reason="needs the docker SDK (pip install docker)")
    with daemon(socket_path) as calls:
        done = nvx_harness("--no-build", "--", "-k", "it", DOCKER_HOST=f"unix://{socket_path}")
    assert (done.returncode, done.stdout) == (3, "from the container\n")
    assert "running in a container of the rootless daemon at unix://" in done.stderr
    assert not [call for call in calls if call[1] == "/build"]


def test_without_a_daemon_the_command_says_why() -> None:
    pytest.importorskip("docker", reason="needs the docker SDK (pip install docker)")
    done = nvx_harness("--", "-k", "it", DOCKER_HOST="unix:///none/d.sock")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: a container can't run here; missing: a daemon that answers at /none/d.sock")
    skipped = nvx_harness("--if-possible", "--", "-k", "it", DOCKER_HOST="unix:///none/d.sock")
    assert (skipped.returncode, skipped.stderr) == (0, "")
    assert skipped.stdout.startswith("skipped: a container can't run here; missing: a daemon")


def test_without_the_sdk_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(Unavailable, match=r"the docker SDK \(pip install 'nvx-ref\[containers\]'\)"):
        containers.connect({})


def test_scenarios_really_run_in_a_container() -> None:
    try:
        found = containers.connect(os.environ)
    except Unavailable as reason:
        pytest.skip(str(reason))
    containers.build(found, str(ROOT))
    output = io.BytesIO()
    status = containers.run(found, Job(("scenarios/test_lifecycle.py", "-k", "foreign")), output=output)
    assert status == 0, output.getvalue().decode(errors="backslashreplace")
