"""What differs from system to system: the one place of the harness, beside its backends, that asks which one this is.

Each of the two modules is imported where it can be, and imports the heavier halves below it only when they are asked
for: a run without a scenario pays for none of them.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from harness.platform.windows import (
        CACHE,
        LONGEST_RUNS,
        OWN_GOLDENS,
        answers_of,
        as_text,
        assignment,
        choose_channel,
        fork_template,
        free_interrupts,
        held_exit,
        hold_directory,
        host,
        ignore_interrupts,
        interrupt,
        interrupts_held,
        is_own_directory,
        left_pipes,
        listen,
        open_shared,
        open_terminal,
        owner_of,
        rename_new,
        require_held_exit,
        short_root,
        split_command,
        system_name,
        take_directory,
        take_interrupts,
        to_paste,
    )
else:
    from harness.platform.linux import (
        CACHE,
        LONGEST_RUNS,
        OWN_GOLDENS,
        answers_of,
        as_text,
        assignment,
        choose_channel,
        fork_template,
        free_interrupts,
        held_exit,
        hold_directory,
        host,
        ignore_interrupts,
        interrupt,
        interrupts_held,
        is_own_directory,
        left_pipes,
        listen,
        open_shared,
        open_terminal,
        owner_of,
        rename_new,
        require_held_exit,
        short_root,
        split_command,
        system_name,
        take_directory,
        take_interrupts,
        to_paste,
    )

KERNEL = sys.platform
"""What Python calls this system."""

__all__ = [
    "CACHE",
    "KERNEL",
    "LONGEST_RUNS",
    "OWN_GOLDENS",
    "answers_of",
    "as_text",
    "assignment",
    "choose_channel",
    "fork_template",
    "free_interrupts",
    "held_exit",
    "hold_directory",
    "host",
    "ignore_interrupts",
    "interrupt",
    "interrupts_held",
    "is_own_directory",
    "left_pipes",
    "listen",
    "open_shared",
    "open_terminal",
    "owner_of",
    "rename_new",
    "require_held_exit",
    "short_root",
    "split_command",
    "system_name",
    "take_directory",
    "take_interrupts",
    "to_paste",
]
