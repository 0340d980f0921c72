"""Fetch an archive of a release: ``python ci/fetch_release.py --repository R --tag T --into DIR ARCHIVE``.

Three attempts each; a refusal with credentials is tried again without (contract nvx-host 4.2). An archive whose digest
differs from the release's ``SHA256SUMS`` isn't kept, and one that is there already and right isn't fetched.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import threading
import urllib.error
import urllib.request
from typing import IO, cast

API = "https://api.github.com"
SUMS = "SHA256SUMS"
ATTEMPTS = 3
PAUSE = 2.0
"""Seconds between two attempts, the number of the attempt times."""

TIMEOUT = 60
REFUSED = (401, 403)
CHUNK = 1 << 20


class FetchError(Exception):
    """A release can't be fetched; the text says what and why."""


def opened(url: str, accept: str, token: str | None, *, pause: float = PAUSE) -> IO[bytes]:
    """Open a URL, trying again where that may help.

    Args:
        url: What to open.
        accept: The kind of answer.
        token: Credentials, None for none.
        pause: Seconds to wait after the first attempt.

    Raises:
        FetchError: It can't be had.
    """
    why = ""
    for attempt in range(1, ATTEMPTS + 1):
        headers = {"Accept": accept, "User-Agent": "nvx-ref"}
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the scheme is the caller's API's
        if token:
            # An asset is a redirect to a store of its own, which refuses credentials beside its own signature.
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        try:
            return cast("IO[bytes]", urllib.request.urlopen(request, timeout=TIMEOUT))  # noqa: S310 - as above
        except urllib.error.HTTPError as error:
            why = f"{error.code} {error.reason}"
            if error.code in REFUSED and token:
                token = None
                continue
            if error.code < 500:  # noqa: PLR2004 - what the client did wrong stays wrong
                break
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            why = str(getattr(error, "reason", error))
        threading.Event().wait(pause * attempt)
    raise FetchError(f"{url}: {why}")


def fetch(options: argparse.Namespace, token: str | None, *, pause: float = PAUSE) -> str:
    """Fetch an archive and check it; return its path.

    Raises:
        FetchError: There is no such release or archive, it can't be had, or its digest differs.
    """
    url = f"{options.api}/repos/{options.repository}/releases/tags/{options.tag}"
    with opened(url, "application/vnd.github+json", token, pause=pause) as answer:
        release = json.load(answer)
    assets = {str(one["name"]): str(one["url"]) for one in release.get("assets", [])}
    if options.archive not in assets:
        raise FetchError(f"{options.repository} {options.tag}: it has no {options.archive}; it has {sorted(assets)}")
    os.makedirs(options.into, exist_ok=True)
    path = os.path.join(options.into, options.archive)
    if SUMS in assets:
        _download(assets[SUMS], os.path.join(options.into, SUMS), token, pause=pause)
    stated = _stated(os.path.join(options.into, SUMS), options.archive) if SUMS in assets else None
    if stated is None or not os.path.isfile(path) or _digest(path) != stated:
        _download(assets[options.archive], path, token, pause=pause)
    found = _digest(path)
    if stated not in {None, found}:
        os.unlink(path)
        raise FetchError(f"{options.archive}: its SHA-256 is {found}, and {SUMS} states {stated}")
    return path


def _download(url: str, path: str, token: str | None, *, pause: float) -> None:
    staged = f"{path}.new"
    with opened(url, "application/octet-stream", token, pause=pause) as answer, open(staged, "wb") as file:
        shutil.copyfileobj(answer, file, CHUNK)
    os.replace(staged, path)


def _stated(path: str, name: str) -> str | None:
    with open(path, encoding="utf-8") as file:
        lines = [line.split(None, 1) for line in file if line.strip()]
    return next((words[0].lower() for words in lines if words[-1].strip().lstrip("*") == name), None)


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: list[str], *, pause: float = PAUSE) -> int:
    """Fetch what the arguments name; return 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(description="Fetch an archive of a release and check its digest.")
    parser.add_argument("archive")
    parser.add_argument("--repository", required=True, metavar="OWNER/NAME")
    parser.add_argument("--tag", required=True)
    parser.add_argument("--into", required=True, metavar="DIR")
    parser.add_argument("--api", default=API, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    token = os.environ.get("GH_TOKEN") or os.environ.get("GITHUB_TOKEN")
    try:
        print(fetch(options, token, pause=pause))
    except (FetchError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
