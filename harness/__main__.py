"""`python -m harness` is `nvx-harness`."""

from harness.cli import main

main()
