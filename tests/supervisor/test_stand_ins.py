"""What plays the VMM in these tests ends with them, however late it comes."""

from __future__ import annotations

import subprocess

import pytest

from sandboxes import Site
from system import only_linux

only_linux("a lifeline there is a lock, which is given to whoever comes late at once")


@pytest.mark.parametrize("mode", ["silent", "serve", "deaf"])
def test_a_stand_in_that_comes_after_the_end_of_its_lifeline_ends(site: Site, mode: str) -> None:
    site.close()
    done = subprocess.run(
        site.command(mode, f"{site.root}/endpoint").argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.split()[-1] == b"ready"
