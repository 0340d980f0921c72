"""What a user typed, for errors about values that the library knows by its own names."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from nvx_ref.errors import NvxError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

SANDBOX = {
    "artifacts": "--artifacts",
    "openvmm": "--openvmm",
    "kernel": "--kernel",
    "initramfs": "--initrd",
    "manifest": "--manifest",
    "distro": "--distro",
    "format": "--format",
    "identity": "--identity",
    "scratch": "--scratch",
    "upper": "--scratch, --ram-upper",
    "entrypoint": "--entrypoint",
    "argument": "--arg",
    "hostname": "--hostname",
    "hypervisor": "--hypervisor",
    "cmdline": "--cmdline",
    "memory in MiB": "--memory-mib",
    "memory limit": "--memory-max",
    "process limit": "--pids-max",
    "workload user": "--workload-user",
    "workload group": "--workload-user",
    "mount": "--mount",
    "shares": "--mount",
    "exports": "--mount",
    "target": "--mount",
    "shared path": "--mount",
    "deny path": "--mount-deny",
    "allow path": "--mount-allow",
    "write path": "--mount-write",
    "net": "--net",
    "network": "--network-egress",
    "proxy": "--network-proxy",
    "forwards": "--host-loopback-forward",
    "allow rules": "--network-egress-allow",
    "deny rules": "--network-egress-deny",
}
"""The options of `provision` and `run`."""

IMAGE = {"image": "PATH", "distro": "PATH", "file": "PATH", "identity": "--identity", "format": "--format"}
"""Those of `image`."""

_EXECUTION = {
    "command": "PROGRAM ARGUMENTS",
    "argv": "PROGRAM ARGUMENTS",
    "program": "PROGRAM",
    "cwd": "--cwd",
    "timeout": "--exec-timeout-ms",
}


def execution_words(environment_file: str | None) -> Mapping[str, str]:
    """Return the options of `exec`.

    Args:
        environment_file: Where its variables came from, None for the command line.
    """
    place = "--environment" if environment_file is None else f"--environment-file {environment_file}"
    return {**_EXECUTION, "environment": place, "environment entry": f"{place}, entry"}


@contextmanager
def typed(options: Mapping[str, str]) -> Generator[None]:
    """Name the option in errors that name one of its values by the library's word for it.

    A subject is that word, several of them, or one and what it is about (``target '/etc'``); others are a file's path
    or an option already, and stay.

    Args:
        options: The option for each word.
    """
    try:
        yield
    except NvxError as error:
        if error.subject is not None:
            error.subject = _named(error.subject, options)
        raise


def _named(subject: str, options: Mapping[str, str]) -> str:
    words = subject.split(", ")
    if all(word in options for word in words):
        return ", ".join(options[word] for word in words)
    for word in sorted(options, key=len, reverse=True):
        if subject.startswith(f"{word} "):
            return f"{options[word]} {subject[len(word) + 1 :]}"
    return subject
