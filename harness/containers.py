"""Running scenarios in a container: a PID space of its own, no network, and `/dev/kvm` where this machine has it.

What a process table full of strangers hides shows there: the scenarios' processes are the only ones. The daemon is
spoken to through the docker SDK, which is an optional extra and imported when it is needed; a rootless daemon goes
before one that runs as root (contract nvx-host 4.3).
"""

from __future__ import annotations

import importlib
import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Protocol, cast

from harness import outputs
from harness.errors import HarnessError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CONTAINERFILE = "ci/Containerfile"
IMAGE = "nvx-ref-scenarios"
LABEL = "nvx-ref.scenarios"
KVM = "/dev/kvm"
ARTIFACTS = "/artifacts"
REPORT = "/tmp/nvx-report.json"  # noqa: S108 - in the container, which nobody else is in
ANSWER = 5
"""Seconds that a daemon may take to answer."""

MEMORY = "4g"
PROCESSES = 4096
EXTRA = "pip install 'nvx-ref[containers]'"


class Container(Protocol):
    """The part of the SDK's container that is used."""

    def start(self) -> None:
        """Start it."""
        ...

    def logs(self, *, stream: bool, follow: bool) -> Iterable[bytes]:
        """Return what it prints, as it comes."""
        ...

    def wait(self) -> Mapping[str, object]:
        """Wait for its end, and return its status."""
        ...

    def get_archive(self, path: str) -> tuple[Iterable[bytes], object]:
        """Return a file of it in a tar."""
        ...

    def remove(self, *, force: bool, v: bool) -> None:
        """End and remove it with its volumes."""
        ...


class Containers(Protocol):
    """The part of the SDK's collection of containers that is used."""

    def create(self, image: str, command: list[str], **options: object) -> Container:
        """Create one."""
        ...


class Images(Protocol):
    """The part of the SDK's collection of images that is used."""

    def build(self, **options: object) -> object:
        """Build one."""
        ...


class Client(Protocol):
    """The part of the SDK's client that is used."""

    @property
    def containers(self) -> Containers:
        """Its containers."""
        ...

    @property
    def images(self) -> Images:
        """Its images."""
        ...

    def info(self) -> Mapping[str, object]:
        """Return what the daemon says of itself."""
        ...


Opener = Callable[[str, "float | None"], Client]


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon that answers.

    Attributes:
        address: Where it listens.
        client: What speaks to it.
        rootless: Whether it runs as this user, by its own word.
        has_init: Whether it can put a first process in front of a container's command.
    """

    address: str
    client: Client
    rootless: bool
    has_init: bool

    @property
    def kind(self) -> str:
        """What it is called."""
        return "rootless daemon" if self.rootless else "daemon of root"


@dataclass(frozen=True, slots=True)
class Job:
    """What is to run.

    Attributes:
        arguments: pytest's arguments.
        artifacts: A directory or archive of a real OpenVMM on this machine, seen read-only inside.
        image: The image's name.
    """

    arguments: tuple[str, ...] = ()
    artifacts: str | None = None
    image: str = IMAGE


def addresses(environment: Mapping[str, str]) -> list[str]:
    """Return where daemons may listen, the ones of this user first; ``DOCKER_HOST`` alone if it is set."""
    if chosen := environment.get("DOCKER_HOST"):
        return [chosen]
    user = str(os.getuid()) if hasattr(os, "getuid") else ""
    own = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{user}"
    places = [f"{own}/docker.sock", f"{own}/podman/podman.sock", "/var/run/docker.sock", "/run/podman/podman.sock"]
    return [f"unix://{place}" for place in places]


def connect(environment: Mapping[str, str], open_client: Opener | None = None) -> Daemon:
    """Return the daemon to use: the first rootless one that answers, else the first that does.

    Args:
        environment: The environment's variables.
        open_client: Makes a client for an address and the seconds that an answer may take; None takes the SDK's.

    Raises:
        Unavailable: None answers, or the SDK isn't installed; each address is named with what is wrong there.
    """
    opened = open_client or _sdk()
    wrong: list[str] = []
    found: list[Daemon] = []
    for address in addresses(environment):
        path = address.removeprefix("unix://")
        if path != address and not os.path.exists(path):
            wrong.append(f"{path} (there is no such socket)")
            continue
        try:
            said = opened(address, ANSWER).info()
        except Exception as error:  # noqa: BLE001 - the SDK's errors and those of what it is made of
            wrong.append(f"{path} ({_one_line(error)})")
            continue
        options = said.get("SecurityOptions")
        rootless = isinstance(options, list) and any("rootless" in str(one) for one in cast("list[object]", options))
        # A container may be silent for as long as a scenario takes.
        found.append(Daemon(address, opened(address, None), rootless, bool(said.get("InitBinary"))))
        if rootless:
            break
    if not found:
        raise Unavailable("a container", (f"a daemon that answers at {', '.join(wrong)}",))
    return next((daemon for daemon in found if daemon.rootless), found[0])


def run(daemon: Daemon, job: Job, *, output: IO[bytes], report: str | None = None) -> int:
    """Run pytest in a container that is removed at its end, whatever ends it.

    Args:
        daemon: Where.
        job: What; its image is there.
        output: Takes what pytest prints, as it comes.
        report: Where the scenarios' report goes, None: nowhere.

    Returns:
        pytest's exit status.

    Raises:
        HarnessError: The daemon fails.
    """
    arguments = [*job.arguments, *(["--nvx-report", REPORT] if report else [])]
    try:
        container = daemon.client.containers.create(job.image, arguments, **options(daemon, job))
    except Exception as error:
        raise HarnessError(f"{daemon.address}: no container of {job.image}: {_one_line(error)}") from error
    try:
        container.start()
        for piece in container.logs(stream=True, follow=True):
            output.write(piece)
            output.flush()
        status = container.wait().get("StatusCode")
        if report is not None:
            _fetch(container, report)
    except HarnessError:
        raise
    except Exception as error:
        raise HarnessError(f"{daemon.address}: the container failed: {_one_line(error)}") from error
    finally:
        # The container is removed after Ctrl-C too, and its end is what counts then.
        with suppress(Exception):
            container.remove(force=True, v=True)
    if not isinstance(status, int):
        raise HarnessError(f"{daemon.address}: the container ended without a status")
    return status


def options(daemon: Daemon, job: Job) -> dict[str, object]:
    """Return how a container is made: closed to everything but what the job needs."""
    found: dict[str, object] = {
        "detach": True,
        "network_mode": "none",
        "labels": {LABEL: "1"},
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "mem_limit": MEMORY,
        "pids_limit": PROCESSES,
        "init": daemon.has_init,
        "environment": {},
    }
    if os.access(KVM, os.R_OK | os.W_OK):
        found["devices"] = [f"{KVM}:{KVM}:rw"]
        # The first user of a rootless container is the one who runs the daemon; elsewhere the device's group helps.
        found |= {"user": "0"} if daemon.rootless else {"group_add": [str(os.stat(KVM).st_gid)]}
    if job.artifacts is not None:
        place = os.path.abspath(job.artifacts)
        if not os.path.exists(place):
            raise HarnessError(f"--artifacts {job.artifacts}: there is no such file or directory")
        inside = ARTIFACTS if os.path.isdir(place) else f"{ARTIFACTS}/{os.path.basename(place)}"
        found["volumes"] = {place: {"bind": inside, "mode": "ro"}}
        found["environment"] = {"NVX_ARTIFACTS_DIR": inside}
    return found


def build(daemon: Daemon, checkout: str, image: str = IMAGE) -> None:
    """Build the image from a checkout: its tracked files and nothing else.

    Raises:
        HarnessError: There is no container file, or the build fails; its last lines are in the error.
    """
    if not os.path.isfile(os.path.join(checkout, *CONTAINERFILE.split("/"))):
        raise HarnessError(f"{checkout}: there is no {CONTAINERFILE}; name a checkout of this project")
    with context(checkout) as packed:
        try:
            daemon.client.images.build(
                fileobj=packed, custom_context=True, dockerfile=CONTAINERFILE, tag=image, rm=True, forcerm=True
            )
        except Exception as error:
            log = cast("Iterable[object]", getattr(error, "build_log", None) or ())
            lines = [cast("dict[str, object]", one) for one in log if isinstance(one, dict)]
            last = [str(one.get("stream", "")).strip() for one in lines]
            told = "\n".join(["", *[line for line in last if line][-10:]]).rstrip()
            raise HarnessError(f"{daemon.address}: the image isn't built: {_one_line(error)}{told}") from error


def context(checkout: str) -> IO[bytes]:
    """Return a tar of a checkout's tracked files, as a build takes it.

    Raises:
        HarnessError: They can't be listed.
    """
    command = ["git", "-C", checkout, "ls-files", "-z"]
    try:
        listed = subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise HarnessError(f"{checkout}: git can't list its files, and only a checkout is built from") from error
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in listed.decode("utf-8", "surrogateescape").split("\0"):
            path = os.path.join(checkout, name)
            if name and os.path.lexists(path):
                tar.add(path, name, recursive=False)
    packed.seek(0)
    return packed


def _fetch(container: Container, target: str) -> None:
    """Copy the report out of the container."""
    try:
        pieces, _ = container.get_archive(REPORT)
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
            inside = tar.extractfile(tar.getmembers()[0])
            content = inside.read() if inside is not None else b""
    except Exception as error:
        raise HarnessError(f"the container left no report: {_one_line(error)}") from error
    outputs.write("--report", target, content)


def _sdk() -> Opener:
    try:
        docker = importlib.import_module("docker")
    except ImportError:
        raise Unavailable("a container", (f"the docker SDK ({EXTRA})",)) from None
    make = cast("Callable[..., Client]", docker.DockerClient)
    return lambda address, timeout: make(base_url=address, version="auto", timeout=timeout)


def _one_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
