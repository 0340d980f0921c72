"""`python -m nvx_ref`."""

from nvx_ref.cli import main

main()
