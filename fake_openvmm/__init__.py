"""A stand-in for OpenVMM's microVM profile: an independent reading of the contract."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main(argv: list[str] | None = None, *, side_file: str | None = None) -> NoReturn:
    """Run the stand-in and end the process with its status.

    Args:
        argv: arguments without the program's name; the process's own if None.
        side_file: path of the harness's side file; without one only the contract is followed.
    """
    import sys  # noqa: PLC0415 - the name would be the package's

    from fake_openvmm import program  # noqa: PLC0415 - importing the package stays free

    program.start(sys.argv[1:] if argv is None else argv, side_file)
