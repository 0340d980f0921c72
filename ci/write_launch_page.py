"""Write the life of a launch from `Step` and the allowed states: ``python ci/write_launch_page.py [FILE]``.

What a crash leaves is taken from `goldens/allowed_states.json`, which the crash cells are judged by.
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, cast

sys.path.insert(0, str(Path(__file__).resolve().parent))

from launch_steps import OPERATIONS, TEXTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvx_ref.steps import Step

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "launch.md"
GOLDEN = ROOT / "goldens" / "allowed_states.json"
COMMAND = "python ci/write_launch_page.py"

Allowed = dict[str, dict[str, dict[str, object]]]

HEAD = f"""# The life of a launch

Written by `{COMMAND}` from `nvx_ref.steps.Step` and `goldens/allowed_states.json`; don't edit.

A step is announced once it has happened. The code calls its observer with it, the harness crashes there, cell ids and
failure texts name it. Each picture is one operation, from top to bottom: the step, what is in the sandbox's directory
then, and whether the VM monitor runs. What has just appeared is filled; what may be there or not is dashed. The table
below says what a crash right after the step comes to: the verdict of the next orchestrator's `reattach`, and what that
leaves. Each line of it is a crash cell of `nvx-harness sweep`.
"""
FOOT = """
What the words in the pictures mean: `config` is the caller's configuration, `lock` the lifecycle lock, `log` the VM
monitor's output, `capability` the secret of the control connection, `journal` the marker of a launch
(`journal+process` once it names its process), `runtime` the committed record, `socket` the endpoint, `outcome` the VM
monitor's report, `staging` and `temporary` files that were being written.
"""

SCENES = ("provision", "start", "refused-start", "stop", "forced-stop", "recover", "deprovision", "recovery")
"""Where the allowed states of a step are looked for, in this order."""

ROW, TOP, WIDTH = 30, 26, 880
NAME, FILES, VMM = 12, 250, 850
CHAR = 6.6
OLD, NEW, MAYBE = "old", "new", "maybe"


def allowed() -> Allowed:
    """Return what each step of each scene allows."""
    return cast("Allowed", json.loads(GOLDEN.read_text()))


def said(states: Allowed, step: Step, kind: str) -> list[str]:
    """Return the patterns of a step: of its operation's own scene, or of any that knows it."""
    for scene in SCENES:
        entry = states.get(scene, {}).get(step.value)
        while entry is not None and isinstance(same := entry.get("as"), str):
            entry = states[scene][same]
        if entry is not None:
            return cast("list[str]", entry.get(kind, []))
    return []


def operation(step: Step) -> str:
    """Return the operation of a step."""
    return step.value.partition(".")[0]


def picture(name: str, steps: Sequence[Step], states: Allowed) -> str:
    """Return the drawing of an operation."""
    height = TOP + ROW * len(steps) + 8
    title = f"{name}: what is on the disk after each step"
    heads = ((NAME + 14, "start", "step"), (FILES, "start", "on the disk"), (VMM, "end", "VM monitor"))
    lines = [
        f'<svg class="launch" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">',
        *(f'<text class="head" x="{x}" y="14" text-anchor="{end}">{text}</text>' for x, end, text in heads),
        f'<line class="rail" x1="{NAME}" x2="{NAME}" y1="{TOP}" y2="{height - 12}"/>',
    ]
    before: set[str] = set()
    for place, step in enumerate(steps):
        y = TOP + ROW * place + ROW // 2
        words = next(iter(said(states, step, "at")), "").split()
        lines += [
            f'<circle class="dot" cx="{NAME}" cy="{y}" r="5"/>',
            f'<text class="step" x="{NAME + 14}" y="{y + 4}">{escape(step.value.partition(".")[2])}</text>',
            *chips([word for word in words if word.strip("[]") != "vmm"], before, y),
        ]
        if "vmm" in {word.strip("[]") for word in words}:
            lines.append(f'<rect class="vmm" x="{VMM - 26}" y="{y - ROW // 2}" width="10" height="{ROW}"/>')
        before = {word for word in words if not word.startswith("[")}
    return "\n".join([*lines, "</svg>"])


def chips(words: Sequence[str], before: set[str], y: int) -> list[str]:
    """Return the drawing of what is in a directory."""
    x: float = FILES
    found: list[str] = []
    for word in words:
        name = word.strip("[]")
        kind = MAYBE if word.startswith("[") else OLD if name in before else NEW
        width = round(len(name) * CHAR + 14, 1)
        middle = f'x="{x + width / 2:g}" y="{y + 4}" text-anchor="middle"'
        found += [
            f'<rect class="chip {kind}" x="{x:g}" y="{y - 10}" width="{width:g}" height="20" rx="4"/>',
            f'<text class="chip-text {kind}" {middle}>{escape(name)}</text>',
        ]
        x = round(x + width + 6, 1)
    return found


def table(steps: Sequence[Step], states: Allowed) -> list[str]:
    """Return what each step means and what a crash after it comes to."""
    lines = ["| Step | What has happened | After a crash here the next `reattach` says |", "| --- | --- | --- |"]
    for step in steps:
        verdicts = [f"`{pattern}`" for pattern in said(states, step, "restart")]
        lines.append(f"| `{step.value}` | {TEXTS[step]} | {'<br>'.join(verdicts)} |")
    return lines


def page() -> str:
    """Return the whole page."""
    states = allowed()
    parts = [HEAD]
    for name, about in OPERATIONS.items():
        steps = [step for step in TEXTS if operation(step) == name]
        parts += [
            f"## {name.replace('_', ' ').capitalize()}\n",
            f"{about}\n",
            f'<div class="drawing">\n{picture(name, steps, states)}\n</div>\n',
        ]
        parts += ["\n".join(table(steps, states)) + "\n"]
    return "\n".join([*parts, FOOT.lstrip()])


def main(arguments: Sequence[str]) -> int:
    """Write the page."""
    (Path(arguments[0]) if arguments else PAGE).write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
