"""The texts of `--help` and `--version`."""

from __future__ import annotations

from fake_openvmm.options import FOREIGN, NOT_WITH_AUTH, PROFILE, SHORT, SNAPSHOT, names_of

VERSION = "openvmm 0.0.0 (fake, microVM profile only)\n"


def render() -> str:
    """List every option: those of the profile, and those that are known only to be refused."""
    short = {name: letter for letter, name in SHORT.items()}
    lines = ["A stand-in for OpenVMM's microVM profile.", "", "Usage: openvmm [OPTIONS]", "", "Options:"]
    for name, (_, value, _) in PROFILE.items():
        letter = f"-{short[name]}, " if name in short else "    "
        lines.append(f"  {letter}--{name}" + (f" <{value}>" if value else ""))
    lines += ["  -h, --help", "  -V, --version", ""]
    lines += ["Unsupported here (snapshot, restore, restore that validates without rewriting; refused with status 1):"]
    lines += [f"      --{name}" for name in names_of(SNAPSHOT)]
    lines += ["", "Known, and refused by the microVM profile or by this stand-in (status 1):"]
    lines += [f"      --{name}" for name in (*NOT_WITH_AUTH, *names_of(FOREIGN))]
    return "\n".join(lines) + "\n"
