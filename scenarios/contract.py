"""Which scenario of the consumer contract each module shows.

The specification names C3 to C7 without printing their texts, so tests are named after behaviour and only this table
knows numbers: if upstream's differ, one edit here repairs every marker, table and report.
"""

from __future__ import annotations

CONTRACT: dict[str, str] = {
    "test_adapter": "c3",
    "test_checked_handoff": "c4",
    "test_cold_boot": "c3",
    "test_image_guards": "c4",
    "test_exports": "c5",
    "test_managed_order": "c5",
    "test_network": "c5",
    "test_restart_same_identity": "c6",
    "test_two_builds": "c6",
    "test_another_runtime": "c7",
    "test_hard_to_read": "c7",
}
"""From the module of a behaviour to its number, as the marker is spelt."""

OTHERS: dict[str, str] = {
    "test_command_line": "command_line",
    "test_image_swap": "image_swap",
    "test_crash_points": "crash",
    "test_disk_errors": "crash",
    "test_field_reports": "crash",
    "test_interrupted_launch": "crash",
    "test_killed_in_the_spawn": "crash",
    "test_lifecycle": "lifecycle",
    "test_one_shot": "lifecycle",
    "test_terminals": "lifecycle",
    "test_consoles": "lifecycle",
    "test_real_guest": "lifecycle",
    "test_bad_input": "lifecycle",
}
"""From a module without a number to its marker."""

MARKERS: dict[str, str] = {**CONTRACT, **OTHERS}
