"""What a scenario needs of the orchestrator under test, and how that is told by what is asked of it.

Nothing is marked by hand: a request that the orchestrator's hello doesn't cover is never sent, the scenario is skipped,
and the skip names the need. So a scenario that asks for more tomorrow is skipped tomorrow, not failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from harness.errors import Unmet
from harness.sut.messages import ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from harness.sut.protocol import Hello

STORE, DETAILS = "store-v1", "details"

NEEDS: dict[str, str] = {
    STORE: "keeps a sandbox's files by the names and formats of the reference's store, so that they can be judged",
    DETAILS: "failures carry `details` by the table of codes",
    "gpt": "`provision` takes a distro whose `format` is `gpt`",
    "scratch": "`provision` takes `scratch`, a writable upper on a disk image",
    "direct": "`provision` takes `guest` `direct`: no images, the initramfs is all there is",
    "adapter": "`provision` takes `guest` `adapter`, whose agent speaks the test adapter's protocol",
    "network": "`provision` takes `network`",
    "shares": "`provision` takes `shares`",
    "mappings": "`provision` takes `mappings` and `owner`",
    "cmdline": "`provision` takes `cmdline`, text for the kernel's command line",
    "force": "`stop` takes `forceWithin`",
    "exec-options": "`exec` takes `cwd`, `environment`, `inheritEnvironment` and `timeoutMs`",
}
"""What a hello may declare under ``needs``, and what that means."""

WAYS: dict[str, str] = {
    "exit": "ends itself where a request says so, at once and without any clean-up",
    "audit": "announces what its own run-time reports of writes and locks",
}
"""What a hello may declare under ``ways``, and what that means."""

_ARGUMENTS: dict[tuple[str, str], str] = {
    ("provision", "scratch"): "scratch",
    ("provision", "network"): "network",
    ("provision", "shares"): "shares",
    ("provision", "mappings"): "mappings",
    ("provision", "owner"): "mappings",
    ("provision", "cmdline"): "cmdline",
    ("stop", "forceWithin"): "force",
    ("exec", "cwd"): "exec-options",
    ("exec", "environment"): "exec-options",
    ("exec", "inheritEnvironment"): "exec-options",
    ("exec", "timeoutMs"): "exec-options",
}


def unknown(hello: Hello) -> list[str]:
    """Return what a hello declares and no scenario asks for: a later harness's words, or misspelt ones."""
    kinds = (("operation", hello.operations, ARGUMENTS), ("need", hello.needs, NEEDS), ("way", hello.ways, WAYS))
    return [f"{kind} {name}" for kind, names, known in kinds for name in names if name not in known]


def require(hello: Hello, request: Mapping[str, object]) -> None:
    """Check that a hello covers a request.

    Raises:
        Unmet: It doesn't; the first need that is missing.
    """
    for kind, name in _needs(request):
        declared = {"operation": hello.operations, "step": hello.steps, "way": hello.ways, "need": hello.needs}[kind]
        if name not in declared:
            raise Unmet(name if kind == "need" else f"{kind} {name}")


def _needs(request: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    op, args = str(request["op"]), cast("dict[str, object]", request["args"])
    yield "operation", op
    for way in ("exit", "audit"):
        if way in request:
            yield "way", way
    for place in ("pause", "exit"):
        at = request.get(place)
        # Events are named by what happens, and found in a counting run.
        if isinstance(at, list) and "audit" not in request:
            yield "step", str(cast("list[object]", at)[0])
    yield from (("need", _ARGUMENTS[op, name]) for name in args if (op, name) in _ARGUMENTS)
    if op == "provision" and args.get("format") == "gpt":
        yield "need", "gpt"
    if op == "provision" and args.get("guest") in {"direct", "adapter"}:
        yield "need", str(args["guest"])
