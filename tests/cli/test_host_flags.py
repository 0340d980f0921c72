"""Flags on shares and the network become the values that the planner takes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nvx_ref.cli.host import MountFlags, NetworkFlags, environment, network, read_file, shares
from nvx_ref.errors import Malformed, NotFound, NvxError, Refused
from nvx_ref.plan import Access, NetworkMode, Owner, plan_network

NET = {"net": "10.0.0.2/24", "profile": "portable"}


def test_each_policy_path_goes_to_the_share_that_holds_it_most_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    one, two = shares(
        MountFlags(
            mount=("/a,srv/a,rw", "/b,/srv/a/b"),
            deny=("/srv/a/x", "/srv/a/b/y"),
            allow=("srv/a/x/z",),
            write=("/srv/a/w",),
            owner="caller",
        )
    )
    assert (one.host, one.access, one.owner) == ("/srv/a", Access.READ_WRITE, Owner.CALLER)
    assert (one.denied, one.allowed, one.writable) == (("/srv/a/x",), ("/srv/a/x/z",), ("/srv/a/w",))
    assert (two.access, two.denied) == (Access.READ_ONLY, ("/srv/a/b/y",))


def test_relative_paths_are_joined_and_never_normalised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (share,) = shares(MountFlags(mount=("/a,x/../y",)))
    assert share.host == os.path.join(tmp_path, "x/../y")


@pytest.mark.parametrize(
    ("flags", "mode"),
    [
        ({}, NetworkMode.ALLOW),
        ({"egress": "deny"}, NetworkMode.DENY),
        ({"egress": "deny", "proxy": "10.0.0.1:8080"}, NetworkMode.PROXY_ONLY),
        ({"egress": "deny", "allow": ("1.2.3.4/32",), "proxy": "10.0.0.1:80"}, NetworkMode.DENY),
        ({"egress": "allow", "deny": ("1.2.3.4/32",)}, NetworkMode.ALLOW),
    ],
)
@pytest.mark.spec("622.scope4.a", "622.acc.12")
def test_network_flags_are_a_policy(flags: dict[str, object], mode: NetworkMode) -> None:
    policy = network(NetworkFlags(**NET, **flags))  # type: ignore[arg-type]
    assert policy is not None
    assert policy.mode is mode
    plan_network(policy)


def test_no_flag_is_no_policy() -> None:
    assert network(NetworkFlags()) is None


@pytest.mark.parametrize(
    ("flags", "kind"),
    [
        ({"egress": "deny", "proxy": "10.0.0.9:80"}, Refused),
        ({"egress": "deny", "proxy": "10.0.0.1:0"}, Malformed),
        ({"egress": "deny", "proxy": "10.0.0.1"}, Malformed),
        ({"egress": "deny", "proxy": "10.0.0.1:80", "deny": ("1.1.1.1",)}, Refused),
        ({"ingress": "allow"}, Refused),
        ({"allow": ("1.2.3.4/32",)}, Refused),
        ({"loopback": "allow"}, Refused),
        ({"forwards": ("tcp:1:2",)}, Refused),
        ({"loopback": "allow", "forwards": ("tcp:1",)}, Malformed),
    ],
)
def test_network_flags_that_mean_nothing_are_refused(flags: dict[str, object], kind: type[NvxError]) -> None:
    with pytest.raises(kind):
        network(NetworkFlags(**NET, **flags))  # type: ignore[arg-type]


def test_a_policy_file_is_read_once_and_its_address_can_be_given(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps({"mode": "deny", "allow": [{"cidr": "10.1.0.0/16", "protocol": "tcp", "ports": "443"}]}))
    policy = network(NetworkFlags(net="10.9.0.2/24", profile="portable", policy_file=str(path)))
    assert policy is not None
    plan = plan_network(policy)
    assert plan is not None
    assert (plan.address, plan.allow) == ("10.9.0.2/24", ("10.1.0.0/16:tcp:443",))


def test_an_environment_file_is_a_list_of_entries(tmp_path: Path) -> None:
    path = tmp_path / "environment.json"
    path.write_text('["A=1", "B= two "]')
    assert environment(str(path)) == ("A=1", "B= two ")


@pytest.mark.parametrize("text", ["", "{}", '{"A": "1"}', "[1]", '["A=1"', "[" * 5000, "\xff"])
def test_what_is_no_environment_file_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "environment.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(Malformed, match=r"environment\.json"):
        environment(str(path))


def test_small_files_are_bounded_and_regular(tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(Malformed, match="over"):
        read_file(str(big), what="--x")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(Refused, match="not a regular file"):
        read_file(str(tmp_path / "fifo"), what="--x")
    for missing in ("none", "a\0b"):
        with pytest.raises(NotFound):
            read_file(str(tmp_path / missing), what="--x")
