"""`nvx-harness mutants`: what kills a seeded fault, and what only looks like it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.mutants.commands import unlisted
from harness.mutants.patch import Unfit, apply, load, parse
from harness.settings import RUNS

ROOT = Path(__file__).resolve().parents[2]

CODE = """\
def limit():
    return 10


def greeting():
    return "hello"
"""

TESTS = """\
import pytest
from small import rules

def test_limit():
    assert rules.limit() == 10

@pytest.mark.parametrize("letter", "hx")
def test_greeting(letter):
    assert (letter in rules.greeting()) == (letter == "h")

def test_nothing():
    assert rules

@pytest.fixture
def checked():
    assert rules.limit() == 10

def test_behind_a_fixture(checked):
    pass

def test_that_hangs_with_a_fault():
    while rules.limit() > 10:
        pass

@pytest.mark.skipif(not rules.limit(), reason="never")
def test_skipped():
    pytest.skip("there is no moon here")
"""

NOTICED = "tests/test_rules.py::test_limit"


def patch(old: str = "    return 10", new: str = "    return 11", *, tests: tuple[str, ...] = (NOTICED,)) -> str:
    noticed = "".join(f"Noticed-by: {test}\n" for test in tests)
    hunk = f"@@ -1,2 +1,2 @@\n def limit():\n-{old}\n+{new}\n"
    return f"Breaks: The limit.\nPromise: 12\n{noticed}\n--- a/small/rules.py\n+++ b/small/rules.py\n{hunk}"


class Tree:
    """A checkout in small: one package, its tests, and patches."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("small", "tests", "ci/mutants"):
            (root / name).mkdir(parents=True)
        # It is a plugin of every pytest of this environment.
        (root / "harness").symlink_to(ROOT / "harness")
        (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = ["--import-mode=importlib"]\n')
        (root / "small/__init__.py").touch()
        (root / "small/rules.py").write_text(CODE)
        (root / "tests/test_rules.py").write_text(TESTS)

    def seed(self, name: str, text: str) -> None:
        (self.root / f"ci/mutants/{name}.patch").write_text(text)

    def listed(self, **noticed: list[str]) -> None:
        (self.root / "ci/mutants/baseline.json").write_text(json.dumps({"format": 1, "noticedBy": noticed}))

    def run(self, *options: str) -> tuple[int, str, list[dict[str, object]]]:
        """Run the command; return its status, what it said, and the faults of its report."""
        report = self.root / "out.json"
        command = [sys.executable, "-m", "harness", "mutants", "--tree", str(self.root), "-j", "2", *options]
        done = subprocess.run(
            [*command, "--output", str(report)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.stderr == "" or done.returncode in {1, 2}
        faults = json.loads(report.read_text())["faults"] if report.exists() else []
        return done.returncode, re.sub(r" in \d+:\d\d\n$", "\n", done.stdout) + done.stderr, faults


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_fault_that_every_named_test_notices_is_killed_and_listed(tree: Tree) -> None:
    greeting = "tests/test_rules.py::test_greeting"
    tree.seed("m01_limit", patch())
    other = patch('    return "hello"', '    return "xello"', tests=(greeting,)).replace("def limit", "def greeting")
    tree.seed("m02_greeting", other)
    status, said, faults = tree.run("--update-baseline")
    assert (status, said) == (0, "2 of 2 seeded faults noticed (2 tests, a clean copy green)\n")
    assert [(one["name"], one["verdict"], one["noticedBy"]) for one in faults] == [
        ("m01_limit", "killed", [NOTICED]),
        ("m02_greeting", "killed", [greeting]),
    ]
    said = tree.run("--only", "m02")[1]
    assert said == "1 of 1 seeded faults noticed (1 tests, a clean copy green)\n"
    assert (tree.root / "small/rules.py").read_text() == CODE


NO_KILLS = [
    (patch(tests=("tests/test_rules.py::test_nothing",)), "survived", "not noticed by tests/test_rules.py::test_nothi"),
    (patch(tests=(NOTICED, "tests/test_rules.py::test_nothing")), "weaker", "not noticed by tests/test_rules.py::test"),
    (patch("    return 12", "    return 13"), "unfit", "hunk 1 of small/rules.py fits no place"),
    (patch(new="    return (11"), "broken", "it can't be imported: SyntaxError"),
    (patch(new="    return 11\n+import nowhere"), "broken", "it can't be imported: ModuleNotFoundError"),
    (patch(new="    return 11\n+raise SystemExit(3)"), "broken", "it can't be imported"),
    (patch(tests=("tests/test_rules.py::test_behind_a_fixture",)), "broken", "no test failed by its own code"),
    (patch(tests=("tests/test_rules.py::test_that_hangs_with_a_fault",)), "broken", "pytest ended with 1:"),
]
"""What only looks like a fault that is noticed: its verdict, and why."""


def test_what_is_no_kill_fails_the_run(tree: Tree) -> None:
    (tree.root / "tests/conftest.py").write_text(
        "import pytest\n\ndef pytest_collection_modifyitems(items):\n"
        "    for item in items:\n        item.add_marker(pytest.mark.timeout(2, method='thread'))\n"
    )
    names = {f"m{number:02}_fault": text for number, (text, _, _) in enumerate(NO_KILLS)}
    for name, text in names.items():
        tree.seed(name, text)
    tree.listed(**{name: list(parse(name, text).noticed_by) for name, text in names.items()})
    status, said, faults = tree.run()
    assert status == 1
    assert [one["verdict"] for one in faults] == [verdict for _, verdict, _ in NO_KILLS]
    for name, (_, verdict, why) in zip(names, NO_KILLS, strict=True):
        assert f"{name}: {verdict}: {why}" in said
    assert "0 of 8 seeded faults noticed (4 tests, a clean copy green)" in said


def test_a_red_clean_copy_judges_nothing(tree: Tree) -> None:
    (tree.root / "small/rules.py").write_text(CODE.replace('"hello"', '"hxllo"'))
    greeting = "tests/test_rules.py::test_greeting"
    tree.seed("m01_limit", patch(tests=(NOTICED, greeting)))
    tree.listed(m02_gone=[NOTICED])
    status, said, faults = tree.run()
    assert (status, faults) == (1, [])
    assert "m01_limit: not in " in said
    assert "m02_gone: in " in said
    assert "control: fails on a clean copy too: tests/test_rules.py::test_greeting[x]" in said
    assert "a clean copy red" in said


def test_a_test_that_is_not_there_is_named(tree: Tree) -> None:
    tree.seed("m01_limit", patch(tests=("tests/test_rules.py::test_gone",)))
    tree.listed(m01_limit=["tests/test_rules.py::test_gone"])
    status, said, _ = tree.run()
    assert status == 1
    assert "control: pytest ended with 4 on a clean copy:" in said
    assert "test_gone" in said


def test_a_test_that_can_not_run_here_says_why_and_fails_nothing(tree: Tree) -> None:
    tree.seed("m01_limit", patch(tests=("tests/test_rules.py::test_skipped",)))
    tree.listed(m01_limit=["tests/test_rules.py::test_skipped"])
    status, said, faults = tree.run()
    assert (status, [one["verdict"] for one in faults]) == (0, ["skipped"])
    assert "skipped: m01_limit: tests/test_rules.py::test_skipped: " in said
    assert "there is no moon here" in said


def test_what_the_list_lacks_or_has_alone_is_named(tree: Tree) -> None:
    tree.seed("m01_limit", patch())
    known = load(str(tree.root / "ci/mutants"))
    tree.listed(m02_gone=[NOTICED])
    path = tree.root / "ci/mutants/baseline.json"
    assert unlisted(known, str(tree.root)) == [
        f"m01_limit: not in {path}",
        f"m02_gone: in {path}, and there is no such patch",
    ]
    tree.listed(m01_limit=[])
    assert unlisted(known, str(tree.root)) == [f"m01_limit: {path} names other tests than the patch"]
    tree.listed(m01_limit=[NOTICED])
    assert unlisted(known, str(tree.root)) == []


@pytest.mark.parametrize(
    ("options", "said", "status"),
    [
        (["--only", "m07"], "no seeded fault is called 'm07'", 2),
        (["--quick", "--update-baseline"], "--update-baseline needs a run of every fault", 2),
        (["--tree", "/nowhere"], "error: /nowhere/ci/mutants: No such file or directory; run this in a checkout", 1),
        ([], "baseline.json: ", 1),
    ],
)
def test_what_can_not_be_done_is_named(tree: Tree, options: list[str], said: str, status: int) -> None:
    tree.seed("m01_limit", patch())
    found, text, _ = tree.run(*options)
    assert found == status
    assert said in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("limit", patch(), "it isn't called mNN_what_is_broken.patch"),
        ("m01_limit", patch().replace("Promise: 12", "Promise: 14"), "its promise is none of 1, 2, "),
        ("m01_limit", patch().replace("Breaks: The limit.\n", ""), "it needs one Breaks: line"),
        ("m01_limit", patch(tests=()), "it needs Noticed-by: lines"),
        ("m01_limit", patch(tests=("tests/test_rules.py",)), "each with one test as pytest calls it"),
        ("m01_limit", patch().replace("Breaks", "breaks"), "no header: 'breaks: The limit.'"),
        ("m01_limit", patch().partition("--- a/")[0], "there is no diff in it"),
        ("m01_limit", patch().partition("@@")[0], "nothing changes in small/rules.py"),
        ("m01_limit", patch().replace("small/", "../small/"), "it doesn't change one file of the tree"),
        ("m01_limit", patch(new="    return 10"), "a hunk without lines to find, or without a change"),
    ],
)
def test_what_is_no_patch_is_refused(name: str, text: str, why: str) -> None:
    with pytest.raises(HarnessError, match=re.escape(why)):
        parse(name, text)


def test_a_hunk_is_applied_where_its_lines_stand_and_nowhere_else() -> None:
    (change,) = parse("m01_limit", patch()).changes
    assert apply(change, f"# moved\n\n{CODE}") == f"# moved\n\n{CODE}".replace("10", "11")
    with pytest.raises(Unfit, match="fits 2 places"):
        apply(change, CODE * 2)


@pytest.mark.timeout(600)
def test_the_shortened_run_notices_every_fault_and_leaves_nothing() -> None:
    before = os.listdir(os.environ[RUNS])
    done = subprocess.run(
        [sys.executable, "-m", "harness", "mutants", "--quick", "--jobs", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert re.fullmatch(
        r"([5-9]) of \1 seeded faults noticed \(\d+ tests, a clean copy green\) in \d:\d\d\n", done.stdout
    )
    assert sorted(os.listdir(os.environ[RUNS])) == sorted(before)
