"""Fetching a release: tries again where that helps, without credentials where they are refused, and checks digests."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ci import fetch_release

ARCHIVE = "nvx-0.1.0-linux-kvm.tar.gz"
DATA = b"an archive"
DIGEST = hashlib.sha256(DATA).hexdigest()


class Forge(ThreadingHTTPServer):
    """A made-up forge with one release."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.sums: str | None = f"{DIGEST}  {ARCHIVE}\n"
        self.failures: list[int] = []
        self.needs_no_token = False
        self.store = False
        self.seen: list[tuple[str, str | None]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Any

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        forge: Forge = self.server
        token = self.headers.get("Authorization")
        forge.seen.append((self.path, token))
        if forge.failures:
            self.answer(forge.failures.pop(0), b"")
        elif token and forge.needs_no_token:
            self.answer(403, b"")
        elif self.path == "/repos/o/n/releases/tags/v1":
            names = [ARCHIVE, *(["SHA256SUMS"] if forge.sums is not None else [])]
            assets = [{"name": name, "url": f"{forge.address}/assets/{name}"} for name in names]
            self.answer(200, json.dumps({"assets": assets}).encode())
        elif forge.store and self.path.startswith("/assets/"):
            self.send_response(302)
            self.send_header("Location", self.path.replace("/assets/", "/store/"))
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif token and self.path.startswith("/store/"):
            # Its address holds a signature; a second proof is an error to it, not a refusal.
            self.answer(400, b"")
        elif self.path in {f"/assets/{ARCHIVE}", f"/store/{ARCHIVE}"}:
            self.answer(200, DATA)
        elif self.path in {"/assets/SHA256SUMS", "/store/SHA256SUMS"}:
            self.answer(200, str(forge.sums).encode())
        else:
            self.answer(404, b"")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def forge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Forge]:
    for name in ("GH_TOKEN", "GITHUB_TOKEN", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Forge() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def fetched(forge: Forge, into: Path, archive: str = ARCHIVE) -> int:
    options = ["--repository", "o/n", "--tag", "v1", "--into", str(into), "--api", forge.address, archive]
    return fetch_release.main(options, pause=0.0)


def test_an_archive_is_fetched_checked_and_not_fetched_again(forge: Forge, tmp_path: Path) -> None:
    assert fetched(forge, tmp_path) == 0
    assert (tmp_path / ARCHIVE).read_bytes() == DATA
    forge.seen.clear()
    assert fetched(forge, tmp_path) == 0
    assert f"/assets/{ARCHIVE}" not in [path for path, _ in forge.seen]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["SHA256SUMS", ARCHIVE]


def test_a_failing_forge_is_asked_three_times(forge: Forge, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forge.failures = [502, 500]
    assert fetched(forge, tmp_path) == 0
    forge.failures = [502, 502, 502]
    assert fetched(forge, tmp_path / "again") == 1
    assert "502" in capsys.readouterr().err
    assert forge.failures == []


def test_refused_credentials_are_left_out(forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GH_TOKEN", "secret")
    forge.needs_no_token = True
    assert fetched(forge, tmp_path) == 0
    assert [token for _, token in forge.seen[:2]] == ["Bearer secret", None]


def test_credentials_are_the_forge_s_and_not_its_store_s(
    forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GH_TOKEN", "secret")
    forge.store = True
    assert fetched(forge, tmp_path) == 0
    assert (tmp_path / ARCHIVE).read_bytes() == DATA
    tokens = {path.split("/")[1]: token for path, token in forge.seen}
    assert tokens == {"repos": "Bearer secret", "assets": "Bearer secret", "store": None}


@pytest.mark.parametrize(
    ("sums", "archive", "said"),
    [
        (f"{'0' * 64}  {ARCHIVE}\n", ARCHIVE, f"{ARCHIVE}: its SHA-256 is {DIGEST}, and SHA256SUMS states 0000"),
        (None, "other.zip", "it has no other.zip; it has ['"),
    ],
)
def test_what_isn_t_the_release_s_isn_t_kept(
    forge: Forge, tmp_path: Path, capsys: pytest.CaptureFixture[str], sums: str | None, archive: str, said: str
) -> None:
    forge.sums = sums
    assert fetched(forge, tmp_path, archive) == 1
    assert said in capsys.readouterr().err
    assert not (tmp_path / archive).exists()


def test_a_release_that_isn_t_there_is_told_at_once(
    forge: Forge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge.failures = [404]
    assert fetched(forge, tmp_path) == 1
    assert capsys.readouterr().err.startswith(f"error: {forge.address}/repos/o/n/releases/tags/v1: 404")
    assert len(forge.seen) == 1
