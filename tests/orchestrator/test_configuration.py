"""A request becomes a configuration, or a typed error that names the option; a kept configuration is read strictly."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from nvx_ref.configuration import (
    SandboxConfiguration,
    SandboxRequest,
    configure,
    decode,
    encode,
    split_command,
)
from nvx_ref.errors import Malformed, NotFound, NvxError, Refused
from nvx_ref.oneshot import dry_run
from nvx_ref.plan import Upper


@pytest.mark.spec("622.scope1.a")
@pytest.mark.spec("622.scope7")
def test_a_configuration_survives_its_file(request_: SandboxRequest) -> None:
    configuration = configure(request_)
    raw = encode(configuration)
    assert decode(raw, "config.json") == configuration
    assert raw.endswith(b"}\n")
    assert b"/proc/self/fd" not in raw


@pytest.mark.spec("622.scope1.b")
def test_boot_inputs_are_kept_with_the_activation_that_is_expected_of_them(request_: SandboxRequest) -> None:
    configuration = configure(msgspec.structs.replace(request_, activation="sha256:a"))
    kept = decode(encode(configuration), "config.json")
    assert (kept.artifacts.kernel, kept.artifacts.initramfs) == (
        f"{request_.artifacts}/guest/vmlinux",
        f"{request_.artifacts}/guest/initramfs.cpio.gz",
    )
    assert kept.plan.guest.activation == "sha256:a"
    # It is for whoever compares it; the guest isn't told.
    assert dry_run(kept) == dry_run(configure(request_))


@pytest.mark.spec("622.scope2.g")
def test_a_memory_upper_keeps_no_scratch(request_: SandboxRequest) -> None:
    configuration = configure(msgspec.structs.replace(request_, scratch=None, ram_upper=True))
    assert configuration.scratch is None
    assert configuration.plan.blocks is not None
    assert configuration.plan.blocks.upper is Upper.RAMFS


@pytest.mark.parametrize(
    ("changes", "error", "fragment"),
    [
        ({"scratch": None}, Refused, "--ram-upper"),
        ({"ram_upper": True}, Refused, "exactly one"),
        ({"format": "vhd"}, Refused, "erofs"),
        ({"identity": "nonsense"}, Malformed, "UUID"),
        ({"identity": "22222222-2222-2222-2222-222222222222"}, Malformed, "identity"),
        ({"artifacts": None}, Refused, "--openvmm, --kernel, --initrd, --manifest"),
        ({"kernel": "/k"}, Refused, "--kernel"),
        ({"artifacts": "/nowhere"}, NotFound, "/nowhere"),
        ({"distro": "/nowhere/distro"}, NotFound, "/nowhere/distro"),
        ({"hostname": "Not A Name"}, Refused, "hostname"),
        ({"entrypoint": "/lib/systemd/systemd"}, Refused, "systemd"),
        ({"workload_uid": 0}, Refused, "workload"),
        ({"memory_mib": 0}, Refused, "memory"),
        ({"cmdline": "nvx_sandbox=2"}, Refused, "nvx_"),
        ({"cmdline": "x" * 1000}, Refused, "budget"),
        ({"hypervisor": "xen"}, Refused, "xen"),
    ],
)
def test_a_bad_request_names_its_fault(
    request_: SandboxRequest, changes: dict[str, object], error: type[NvxError], fragment: str
) -> None:
    with pytest.raises(error) as caught:
        configure(msgspec.structs.replace(request_, **changes))
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


def damaged(raw: bytes) -> dict[str, bytes]:
    record = json.loads(raw)
    return {
        "empty": b"",
        "cut": raw[: len(raw) // 2],
        "unknown key": json.dumps({**record, "more": 1}).encode(),
        "another format": json.dumps({**record, "format": 2}).encode(),
        "a null": json.dumps({**record, "scratch": None}).encode(),
        "order": json.dumps(dict(reversed(record.items()))).encode(),
        "duplicate": raw.replace(b'"format": 1,', b'"format": 1, "format": 1,', 1),
        "deep": b"[" * 100_000,
        "not UTF-8": raw.replace(b"erofs", b"\xff\xfe\xfd\xfc\xfb", 1),
        "systemd": raw.replace(b'"/bin/sh"', b'"/lib/systemd/systemd"', 1),
    }


@pytest.mark.case("T44")
@pytest.mark.parametrize("fault", sorted(damaged(b'{"format": 1}')))
def test_a_damaged_configuration_is_malformed_and_named(request_: SandboxRequest, fault: str) -> None:
    raw = damaged(encode(configure(request_)))[fault]
    with pytest.raises(Malformed) as caught:
        decode(raw, "/sandbox/config.json")
    assert str(caught.value).startswith("/sandbox/config.json: ")
    assert len(str(caught.value)) < 500


def test_white_space_is_free(request_: SandboxRequest) -> None:
    configuration = configure(request_)
    assert decode(json.dumps(json.loads(encode(configuration)), indent=7).encode(), "x") == configuration


def test_a_command_is_split_once() -> None:
    assert split_command("python -m 'fake openvmm'") == ("python", "-m", "fake openvmm")
    for bad in ("", "   ", "'open"):
        with pytest.raises(Refused, match="--openvmm"):
            split_command(bad)


def test_a_dry_run_names_files_by_their_paths(request_: SandboxRequest) -> None:
    configuration = configure(request_)
    command, budget = dry_run(configuration)
    assert f"distro:file:{request_.distro},ro" in command
    assert command[command.index("--microvm-lifecycle") + 1] == "one-shot"
    assert "--microvm-control-console" not in command
    assert sum(part.size for part in budget.parts) == budget.used


def test_a_dry_run_refuses_a_path_that_would_be_cut(request_: SandboxRequest, tmp_path: Path) -> None:
    for name in ("a,b", "a;b", "a[b", "a.vhd"):
        path = tmp_path / name
        path.write_bytes(Path(request_.distro).read_bytes())
        with pytest.raises(Refused) as caught:
            dry_run(configure(msgspec.structs.replace(request_, distro=str(path))))
        assert name in str(caught.value)


def test_the_schema_of_a_configuration_is_closed(request_: SandboxRequest) -> None:
    schema = msgspec.json.schema(SandboxConfiguration)
    assert schema["$defs"]["SandboxConfiguration"]["additionalProperties"] is False
    assert configure(request_).format == 1
