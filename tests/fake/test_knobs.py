"""Knobs and pauses: what the harness may ask for, and that a typo never passes."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

import pytest

from fake_openvmm.knobs import KNOWN, Knobs, SideFileError
from fake_openvmm.machine import Evidence, Failure
from fake_openvmm.pauses import Pauses


def test_an_unknown_knob_is_refused() -> None:
    with pytest.raises(SideFileError, match="unknown knob 'exit_codes'"):
        Knobs({"exit_codes": 3})


@pytest.mark.parametrize(
    ("name", "value"), [("old_limit", 1), ("slow_exit_ms", "5"), ("slow_exit_ms", True), ("exit_at", 3)]
)
def test_a_knob_of_another_type_is_refused(name: str, value: int | str) -> None:
    with pytest.raises(SideFileError, match=name):
        Knobs({name: value})


def test_a_getter_takes_declared_knobs_only() -> None:
    knobs = Knobs({"old_limit": True})
    assert knobs.flag("old_limit")
    assert knobs.integer("slow_exit_ms", 7) == 7
    assert set(KNOWN) >= {"old_limit", "features"}
    with pytest.raises(SideFileError):
        knobs.flag("no_such_knob")
    with pytest.raises(SideFileError):
        knobs.text("old_limit")


@pytest.mark.parametrize("point", ["before_bnd", "before_bind#", "before_bind#x"])
def test_an_unknown_pause_point_is_refused(point: str) -> None:
    with pytest.raises(SideFileError):
        Pauses(wanted=[point])
    with pytest.raises(SideFileError):
        Pauses().ends({"exit_at": {point: 3}}, lambda _: None)


def test_a_failure_comes_at_its_hit_only() -> None:
    pauses = Pauses()
    pauses.ends({"fail_at": {"before_maps#2": "no more"}}, lambda _: None)
    pauses.at("before_maps")
    with pytest.raises(Failure, match="no more"):
        pauses.at("before_maps")


def test_a_pause_lasts_until_it_is_resumed(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "evidence", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    pauses = Pauses(Evidence(fd, json.dumps), ["before_bind"])
    ours, theirs = socket.socketpair()
    pauses.attach(theirs, json.dumps, json.loads)
    # The lifeline would end the test process itself: keep the channel open for as long as it runs.
    os.dup(ours.fileno())
    with ours, ours.makefile("r") as lines:
        ours.sendall(b'{"pause": "after_bind"}\n')
        for point in ("before_bind", "after_bind"):
            thread = threading.Thread(target=pauses.at, args=(point,))
            thread.start()
            assert json.loads(lines.readline()) == {"paused": point, "hit": 1}
            assert thread.is_alive()
            ours.sendall(json.dumps({"resume": point}).encode() + b"\n")
            thread.join(60)
            assert not thread.is_alive()
        kinds = [json.loads(line)["kind"] for line in (tmp_path / "evidence").read_text().splitlines()]
        assert kinds == ["at", "resumed", "at", "resumed"]
        os.close(fd)


def test_evidence_never_shows_the_capability(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "evidence", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    evidence = Evidence(fd, json.dumps)
    evidence.protect(bytes(range(32)))
    evidence.event("request", payload=bytes(range(32)).hex())
    os.close(fd)
    line = json.loads((tmp_path / "evidence").read_text())
    assert line["kind"] == "request"
    assert bytes(range(32)).hex() not in json.dumps(line)
