"""Orchestrators from a template: one fork each, as good as a started process, and pytest is in none of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.sut.forkserver import Template
from harness.sut.program import Program, ProgramEnded
from harness.world import environment
from tests.harness.stubs import SOON, descriptors_open, host


@pytest.fixture
def template(tmp_path: Path) -> Iterator[Template]:
    host().adopt_orphans()
    with Template(str(tmp_path), environment=environment()) as running:
        yield running


def fork(template: Template, tmp_path: Path) -> Program:
    program = Program(
        template,
        host=host(),
        errors=str(tmp_path / "errors.txt"),
        cwd=str(tmp_path),
        started=lambda _pid: None,
    )
    program.ready(SOON(60))
    return program


def test_a_fork_says_hello_works_in_its_own_directory_and_ends_with_its_requests(
    template: Template, tmp_path: Path
) -> None:
    with fork(template, tmp_path) as program:
        assert program.hello is not None
        assert program.hello.ways == ("exit", "audit")
        assert os.readlink(f"/proc/{program.pid}/cwd") == str(tmp_path)
        answer = program.call("status", {"root": str(tmp_path / "s"), "name": "box"}, SOON(60))
        assert (answer.ok, answer.code) == (False, "NotFound")
        assert program.close(SOON(60))


def test_a_fork_comes_to_the_harness_with_its_exit_status(template: Template, tmp_path: Path) -> None:
    with fork(template, tmp_path) as program:
        stat = host().stat(program.pid)
        assert stat is not None
        assert stat.parent == os.getpid()
        running = program.begin("status", {"root": 7, "name": "box"}, audit=True)
        with pytest.raises(ProgramEnded, match=r"ended with 1; its last words: .*Expected `str`, got `int`"):
            running.answer(SOON(60))


def test_a_template_has_one_thread_and_neither_it_nor_a_fork_has_pytest(template: Template, tmp_path: Path) -> None:
    with fork(template, tmp_path) as program:
        for pid in (template.pid, program.pid):
            assert len(os.listdir(f"/proc/{pid}/task")) == 1
            assert not any("pytest" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
        script = Path(template.command[-1]).read_text()
        assert "pytest" not in script


def test_what_a_fork_does_touches_no_other(template: Template, tmp_path: Path) -> None:
    with fork(template, tmp_path) as first, fork(template, tmp_path) as second:
        first.kill(SOON(60))
        assert not second.has_exited()
        answer = second.call("status", {"root": str(tmp_path / "s"), "name": "box"}, SOON(60))
        assert answer.code == "NotFound"


def test_no_descriptor_is_left_open_in_harness_or_fork(template: Template, tmp_path: Path) -> None:
    before = descriptors_open()
    with fork(template, tmp_path) as program:
        found = {one.number for one in host().descriptors(program.pid) or ()}
        assert found == {0, 1, 2, 3}
        ours = {one.number for one in host().descriptors(template.pid) or ()}
    assert descriptors_open() == before
    assert ours == {one.number for one in host().descriptors(template.pid) or ()}


def test_a_template_that_is_gone_is_an_error(tmp_path: Path) -> None:
    template = Template(str(tmp_path), environment=environment())
    pin = host().pin(template.pid)
    assert pin is not None
    pin.end()
    pin.wait(SOON(60))
    pin.close()
    before = descriptors_open()
    with pytest.raises(HarnessError, match="the template of the orchestrators is gone"):
        fork(template, tmp_path)
    assert descriptors_open() == before
    template.close()
