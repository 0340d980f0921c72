"""The rules of the house that no off-the-shelf linter holds: each has a test that it can fail."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("nvx_ref", "harness", "fake_openvmm", "scenarios", "tests", "ci")
MAX_LINES = 400
MAX_FUNCTION = 50


def sources(*packages: str) -> list[Path]:
    return sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))


def long_modules(files: list[Path]) -> list[str]:
    return [f"{path}: {count} lines" for path in files if (count := len(path.read_text().splitlines())) > MAX_LINES]


def long_functions(path: Path, text: str) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            start = node.body[1].lineno if ast.get_docstring(node) and len(node.body) > 1 else node.lineno
            if (node.end_lineno or start) - start + 1 > MAX_FUNCTION:
                found.append(f"{path}:{node.lineno} {node.name}")
    return found


RAW_SIGNAL_HOME = ("nvx_ref/platform/",)


def banned_calls(path: str, text: str) -> list[str]:
    """Calls that could reach a process that nobody verified, and `preexec_fn`."""
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        if any(keyword.arg == "preexec_fn" for keyword in node.keywords):
            found.append(f"{path}:{node.lineno} preexec_fn")
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        if name in {"kill", "killpg", "send_signal", "pthread_kill"} or (
            name == "terminate" and "popen" in owner.lower()
        ):
            found.append(f"{path}:{node.lineno} {owner}.{name}")
        if name == "Popen" and not path.startswith(RAW_SIGNAL_HOME):
            found.append(f"{path}:{node.lineno} {owner}.{name}")
    return found


def os_checks(path: str, text: str) -> list[str]:
    """Places that ask for the operating system; a module for one system may assert at its top that it is there."""
    tree = ast.parse(text)
    asserted = {id(inner) for node in tree.body if isinstance(node, ast.Assert) for inner in ast.walk(node)}
    return [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node) in {"sys.platform", "os.name", "platform.system"}
        and id(node) not in asserted
    ]


def untyped(path: str, text: str) -> list[str]:
    """Public functions, methods and attributes with `Any` in what they take, give or hold."""
    found: list[str] = []
    bodies: list[list[ast.stmt]] = [ast.parse(text).body]
    while bodies:
        for node in bodies.pop():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                bodies.append(node.body)
            name, types = _annotated(node)
            words = {inner.id for one in types for inner in ast.walk(one) if isinstance(inner, ast.Name)}
            if "Any" in words and not name.startswith("_"):
                found.append(f"{path}:{node.lineno} {name}")
    return found


def _annotated(node: ast.stmt) -> tuple[str, list[ast.expr]]:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id, [node.annotation]
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return "", []
    given = node.args
    several = [given.vararg, given.kwarg]
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *(one for one in several if one is not None)]
    types = [node.returns, *(one.annotation for one in every)]
    return node.name, [one for one in types if one is not None]


def test_no_public_type_is_any() -> None:
    places = sources("nvx_ref", "harness", "fake_openvmm")
    assert [item for path in places for item in untyped(path.name, path.read_text())] == []


def test_no_module_is_over_the_limit() -> None:
    assert long_modules(sources(*PACKAGES)) == []


def test_no_function_is_over_the_limit() -> None:
    assert [item for path in sources(*PACKAGES) for item in long_functions(path, path.read_text())] == []


def test_the_reference_signals_through_pins_only() -> None:
    found = [
        item
        for path in sources("nvx_ref")
        for item in banned_calls(path.relative_to(ROOT).as_posix(), path.read_text())
    ]
    assert found == []


SYSTEM_HOMES = (
    "nvx_ref/platform/",
    "harness/platform/",
    "harness/backends/",
    # The bundled stand-in is a backend itself: these give each of its halves for one system under one name.
    *(f"fake_openvmm/{name}" for name in ("host.py", "system.py", "transport.py", "tricks.py", "qemu/__init__.py")),
)


def test_only_the_rooms_of_platforms_and_backends_know_the_operating_system() -> None:
    found = [
        item
        for path in sources("nvx_ref", "harness", "fake_openvmm", "scenarios")
        if not path.relative_to(ROOT).as_posix().startswith(SYSTEM_HOMES)
        for item in os_checks(path.relative_to(ROOT).as_posix(), path.read_text())
    ]
    assert found == []


def test_click_is_imported_by_the_command_line_alone() -> None:
    found = [
        path.name
        for path in sources("nvx_ref")
        if path.parent.name != "cli"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any("click" in name for name in [getattr(node, "module", None) or "", *(a.name for a in node.names)])
    ]
    assert found == []


@pytest.mark.spec("620.goal.2", "620.scope3.o", "620.scope4.d")
def test_arrows_run_downwards() -> None:
    run = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c(['--no-cache'])"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


# The checks can fail: each is shown one planted offence.


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.kill(1, 9)\n",
        "child.kill()\n",
        "self.popen.terminate()\n",
        "import signal\nsignal.pthread_kill(1, 9)\n",
        "import subprocess\nsubprocess.Popen(['x'])\n",
        "spawn(x, preexec_fn=f)\n",
    ],
)
def test_a_banned_call_is_found(text: str) -> None:
    assert banned_calls("nvx_ref/store/x.py", text)


@pytest.mark.parametrize(
    "text",
    [
        "def f(x: Any) -> None: ...",
        "def f(**options: Any) -> None: ...",
        "class A:\n    def f(self) -> dict[str, Any]: ...",
        "class A:\n    x: list[Any]",
    ],
)
def test_a_public_type_that_is_any_is_found(text: str) -> None:
    assert untyped("x.py", text)
    assert untyped("x.py", text.replace("def f", "def _f").replace("x: list", "_x: list")) == []


def test_a_long_module_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("x = 1\n" * (MAX_LINES + 1))
    assert long_modules([path])


def test_a_long_function_is_found(tmp_path: Path) -> None:
    body = "def f():\n" + "    x = 1\n" * MAX_FUNCTION
    assert long_functions(tmp_path, body)


def test_an_operating_system_check_is_found_and_an_assertion_for_type_checkers_is_none() -> None:
    for text in ("import sys\nif sys.platform == 'win32': pass\n", "import os\ndef f(): return os.name\n"):
        assert os_checks("x.py", text)
    assert os_checks("x.py", "import sys\nassert sys.platform == 'win32'\n") == []


def test_an_upward_arrow_is_found(tmp_path: Path) -> None:
    for package in ("nvx_ref", "harness", "fake_openvmm"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.xz"))
    with (tmp_path / "nvx_ref" / "store" / "names.py").open("a") as planted:
        planted.write("\nimport nvx_ref.plan\n")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert "BROKEN" in run.stdout


def bare_unpackings(path: str, text: str) -> list[str]:
    """Places of a scenario that would fail with an error of Python's where a witness has something to say."""
    found: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and any(
            isinstance(one, ast.Tuple) and len(one.elts) == 1 for one in node.targets
        ):
            found.append(f"{path}:{node.lineno} {ast.unparse(node)}")
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith((".vms()", ".look()", ".vmms()")):
            found.append(f"{path}:{node.lineno} {ast.unparse(node)}")
    return found


def test_a_scenario_that_wants_one_vmm_says_so_to_a_witness() -> None:
    wrong = "(vm,) = world.vmm.vms()\nlast = world.vmm.vms()[-1]\n"
    assert len(bare_unpackings("seeded", wrong)) == 2
    assert [item for path in sources("scenarios") for item in bare_unpackings(path.name, path.read_text())] == []
