"""Whose a name is: sandboxes, the store's files, the caller's."""

from __future__ import annotations

import pytest

from nvx_ref.errors import Refused
from nvx_ref.store.names import (
    MAX_CALLER_NAME,
    STORE_NAMES,
    CallerFiles,
    check_sandbox,
    foreign,
    is_staging,
    is_temporary,
)

HEX = "0123456789abcdef" * 2


@pytest.mark.parametrize("name", ["a", "0", "A.b_c-d", "a" * 64, "a..b", "a."])
def test_a_sandbox_may_be_called(name: str) -> None:
    assert check_sandbox(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".a", "-a", "_a", "a/b", "a\\b", "a b", "a\n", "a\x00", "a" * 65, "é", "\udcff", "a:b"]
)
def test_a_sandbox_may_not_be_called(name: str) -> None:
    with pytest.raises(Refused) as caught:
        check_sandbox(name)
    assert caught.value.detail == "sandbox-name"


@pytest.mark.spec("620.scope6.b")
@pytest.mark.parametrize("name", ["config.json", "sandbox.json", ".hidden", "Räume.json", "a" * MAX_CALLER_NAME])
def test_the_caller_may_declare(name: str) -> None:
    assert CallerFiles(name).names == (name,)
    assert CallerFiles("other.json", (name,) if name != "other.json" else ()).names[1:] == (name,)


@pytest.mark.spec("620.scope6.c")
@pytest.mark.parametrize(
    "name",
    [
        *STORE_NAMES,
        *(name.upper() for name in STORE_NAMES),
        "Runtime.JSON",
        "runtime.j\u017fon",
        "runtime\u200b.json",
        "\uff32untime.json",
        "\uff52untime.json",
        "",
        ".",
        "..",
        "a/b",
        "/a",
        "a\\b",
        "a\x00b",
        "a\nb",
        "a:b",
        "runtime.json.",
        "runtime.json ",
        "con",
        "NUL.txt",
        "\udcff",
        "a" * (MAX_CALLER_NAME + 1),
        "é" * (MAX_CALLER_NAME // 2 + 1),
        ".tmpAb3xYz",
        ".TMPab3xyz",
        f".config.json.{HEX}.tmp",
        f".CONFIG.json.{HEX.upper()}.TMP",
        ".nfs0001",
        ".NFS0001",
    ],
)
def test_the_caller_may_not_declare(name: str) -> None:
    for declare in (lambda: CallerFiles(name), lambda: CallerFiles("good.json", (name,))):
        with pytest.raises(Refused) as caught:
            declare()
        assert caught.value.detail == "caller-name"


@pytest.mark.parametrize(("configuration", "others"), [("a", ("a",)), ("a", ("A",)), ("a", ("b", "B"))])
def test_a_name_is_declared_once(configuration: str, others: tuple[str, ...]) -> None:
    with pytest.raises(Refused, match="declared twice"):
        CallerFiles(configuration, others)


@pytest.mark.spec("620.scope6.i")
def test_only_undeclared_names_are_foreign() -> None:
    caller = CallerFiles("config.json", ("disk.img",))
    ours = [*STORE_NAMES, "config.json", "disk.img", ".tmpAb3xYz", f".runtime.json.{HEX}.tmp", ".nfs00000000015"]
    strangers = ["Config.json", ".tmpAb3xY", ".tmpAb3xYz0", f".runtime.json.{HEX[:-1]}.tmp", "runtime.json.bak", "x"]
    assert foreign([*ours, *strangers], caller) == sorted(strangers)


@pytest.mark.spec("620.scope6.m")
def test_the_two_kinds_of_temporary_names() -> None:
    assert is_staging(".tmpA1b2C3")
    assert not is_staging(".tmpA1b2C\u0663")
    assert not is_staging(".tmpA1b2C3\n")
    assert is_temporary(f".runtime.json.{HEX}.tmp")
    assert not is_temporary(f"..{HEX}.tmp")
    assert not is_temporary(f".runtime.json.{HEX.upper()}.tmp")
