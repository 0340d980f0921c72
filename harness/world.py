"""One test's world: a short directory of its own, and everything that acts in it or watches it.

An orchestrator under test is started in it, crashed and started again; its VMMs come from a launcher that only this
test has; the witnesses judge by what they see, and the sweep at the end ends and reports whatever is left.
"""

from __future__ import annotations

import os
import re
import secrets
from typing import TYPE_CHECKING

import pytest

from harness import commandline, python, stories, witness
from harness.channel import Channel
from harness.completed import run
from harness.deadline import Clock, until
from harness.errors import Finding, HarnessError, Unsupported, is_finding
from harness.places import environment, make_root, shown
from harness.platform import choose_channel
from harness.prospects import Prospects
from harness.removing import remove_file, remove_tree
from harness.runs import Runs
from harness.settings import orchestrator_words
from harness.sut.messages import HELLO
from harness.sut.process import Started
from harness.sut.program import Program
from harness.table import COUNTED
from harness.witness.evidence import Evidence
from harness.witness.leftovers import Places, sweep
from harness.witness.processes import Processes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.backends.contract import Artifacts, Backend
    from harness.completed import Completed
    from harness.deadline import Deadline
    from harness.images import Images
    from harness.live import Live
    from harness.settings import Settings
    from harness.sut.process import Source
    from harness.sut.protocol import Hello
    from harness.table import Moment

__tracebackhide__ = is_finding

ENDING = 10.0
"""Seconds that what is ended may take to be gone."""

GRACE = 3.0
"""Seconds that a process has to end by itself before it counts as left behind."""

ENDPOINT_LIMIT = 80
TEMPORARY = "tmp"
OWN_NAMES = frozenset(
    {
        "s",
        TEMPORARY,
        "vmm.py",
        "vmm",
        "side.json",
        "channel",
        "fake",
        "out",
        "reference.py",
        "adapter.py",
        "nvx-ref.py",
        "images",
    }
)


class World:
    """Everything of one test.

    Args:
        settings: The run's options.
        backend: What VMMs run on.
        label: The test's name, for its evidence.
        live: Shows what happens as it happens; None: nobody looks on.

    Attributes:
        root: The test's directory.
        state: The state root: the parent of sandboxes.
        token: The test's token.
        clock: Makes deadlines.
        host: The witnesses' look at the operating system.
        processes: The process witness.
        channel: The fakes' channel.
        vmm: The backend's part in this test.
        runs: What became of its VMMs.
        artifacts: What VMs boot from.
        images: The images that guests boot from.
        figures: What the scenario measured, by name, for the final table.
        unseen: What it would have judged, had it been visible on this backend.
        hello: What the orchestrator that was started last says of itself; None before.
        failed: Whether the scenario itself has failed.
    """

    def __init__(self, settings: Settings, backend: Backend, *, label: str, live: Live | None = None) -> None:
        self._settings = settings
        self._live = live
        self.backend = backend
        self.clock = Clock(settings.timeout_scale)
        self.token = secrets.token_hex(8)
        self.root = make_root(settings.directory)
        self.state = os.path.join(self.root, "s")
        os.mkdir(self.state, 0o700)
        for name in ("out", TEMPORARY):
            os.mkdir(os.path.join(self.root, name), 0o700)
        slug = re.sub(r"[^\w.-]+", "-", label).strip("-")[:80]
        kept = os.path.join(settings.directory, "evidence", f"{slug}-{self.token[:4]}")
        self.evidence = Evidence(kept, root=self.state)
        channel = choose_channel(self.root)
        self.vmm = backend.begin(self.root, token=self.token, channel=channel, evidence=os.path.join(self.root, "fake"))
        self.host = witness.host()
        self.processes = Processes(self.host, needle=self.vmm.needle, token=self.token, root=self.state)
        self.channel = Channel(channel, token=self.token, processes=self.processes, host=self.host)
        self.runs = Runs(self.vmm, self.processes, self.clock, heard=self._heard, state=self.state, redact=self._redact)
        self._programs: list[Program] = []
        self._prospects = self.channel.prospects = Prospects(self.vmm, self.processes, self.runs, self._programs)
        place = os.path.join(settings.directory, f"a{os.getpid()}")
        self.artifacts: Artifacts = backend.artifacts(place)
        self.images: Images = backend.images(place)
        self.figures: dict[str, int] = {}
        self.unseen: list[str] = []
        self.hello: Hello | None = None
        self.failed = False
        self._swept = False
        self._kept = False
        self._left = ""

    @property
    def command(self) -> str:
        """The VMM's whole command as one text, as `--openvmm` takes it."""
        return python.as_text(self.vmm.command)

    def names(self) -> dict[str, str]:
        """Return what goldens call the places of this test that differ from run to run."""
        return {
            self.root: "<ROOT>",
            self.artifacts.directory: "<ARTIFACTS>",
            self.command: "<OPENVMM>",
            python.interpreter(): "<PYTHON>",
        }

    def remove(self, path: str) -> None:
        """Remove a file that the scenario itself put somewhere."""
        remove_file(path)

    def need(self, *needs: str) -> None:
        """Skip the scenario, by an error, unless the backend can do what it needs.

        Args:
            needs: See :meth:`harness.backends.contract.Backend.lacks`.

        Raises:
            Unsupported: It can't.
        """
        for need in needs:
            if reason := self.backend.lacks(need):
                raise Unsupported(self.backend.name, reason)

    def saw(self, what: str, *facts: object) -> bool:
        """Tell whether facts are visible on this backend; one that isn't is noted for the final table.

        Args:
            what: What the facts are, in words.
            facts: Each None if it can't be seen.
        """
        if None not in facts:
            return True
        self.unseen.append(what)
        return False

    def soon(self, seconds: float | None = None) -> Deadline:
        """Return a deadline, by default for one operation."""
        return self.clock.after(self.backend.phase if seconds is None else seconds)

    def patience(self, seconds: float, *, up: bool = True) -> float:
        """Return the seconds of an operation that is to fail at its deadline, with the guest up before that or not."""
        boot = self.backend.boot if up else self.backend.boot / 3
        return seconds + boot * self._settings.timeout_scale

    def until(self, look: Callable[[], bool], seconds: float | None = None) -> bool:
        """Look again and again at what nothing announces; return the last answer."""
        return until(look, self.soon(seconds))

    def sandbox(self, name: str) -> str:
        """Return the directory of a sandbox, refusing a name whose endpoint would be too long for the harness."""
        path = os.path.join(self.state, name)
        if len(os.fsencode(os.path.join(path, "control.sock"))) >= ENDPOINT_LIMIT:
            raise HarnessError(f"{path}: endpoints of scenarios stay under {ENDPOINT_LIMIT} bytes")
        return path

    @property
    def bundled(self) -> bool:
        """Whether the orchestrator under test is the bundled reference, whose builds and command line are known."""
        return self._settings.orchestrator is None

    def declares(self, need: str) -> bool:
        """Tell whether the orchestrator under test declares a need (:data:`harness.sut.needs.NEEDS`)."""
        return self.hello is None or need in self.hello.needs

    @property
    def shared(self) -> str:
        """A directory of this worker, for what its tests make once; removed with the run's."""
        path = os.path.join(self._settings.directory, f"shared{os.getpid()}")
        os.makedirs(path, mode=0o700, exist_ok=True)
        return path

    @property
    def is_full(self) -> bool:
        """Whether the run was asked for everything, not for the quick form."""
        return self._settings.sweep == "full"

    def orchestrator(self, source: Source | None = None) -> Program:
        """Start the orchestrator under test and wait for its hello.

        Args:
            source: Makes its process; None starts a real one.
        """
        program = Program(
            source or self._started(),
            host=self.host,
            errors=os.path.join(self.root, "out", f"orchestrator-{len(self._programs)}.txt"),
            cwd=self.root,
            started=self.processes.own,
            asked=self._asked,
            live=self._live,
        )
        self._programs.append(program)
        self.hello = program.ready(self.soon(HELLO))
        self.evidence.learn()
        return program

    def _asked(self, program: Program, op: str) -> None:
        self.channel.pump()
        self._prospects.asked(program, op, self.channel.peers)

    def _redact(self, data: bytes) -> bytes:
        self.evidence.learn()
        return self.evidence.redact(data)

    def _heard(self) -> set[int]:
        self.channel.pump()
        return self.channel.heard

    def adapter(self) -> Started:
        """Return where the test adapter's orchestrators come from.

        Another orchestrator isn't judged by them: the scenario is skipped with that reason.
        """
        if not self.bundled:
            pytest.skip("it judges the bundled test adapter's orchestrator, and --orchestrator names another one")
        command = python.write_script(
            os.path.join(self.root, "adapter.py"),
            packages=("nvx_ref", "harness", "msgspec"),
            body="from harness.sut.adapter import main\n\nsys.exit(main())\n",
        )
        return Started(command, environment=self.environment())

    def _started(self) -> Started:
        if self._settings.orchestrator is not None:
            command = orchestrator_words(self._settings)
        else:
            command = python.write_script(
                os.path.join(self.root, "reference.py"),
                packages=("nvx_ref", "harness", "msgspec"),
                body="from harness.sut.reference import main\n\nsys.exit(main())\n",
            )
        return Started(command, environment=self.environment())

    def nvx_ref(self, *arguments: str) -> Completed:
        """Run the reference's command line to its end, as a user would; its output goes to files."""
        return self.run([*self.nvx_ref_command(), *arguments])

    def nvx_ref_command(self) -> list[str]:
        """Return what starts the reference's command line.

        Another orchestrator isn't judged by it: the scenario is skipped with that reason.
        """
        if self._settings.orchestrator is not None:
            pytest.skip("it judges the nvx-ref command, and --orchestrator names another orchestrator")
        return python.write_script(
            os.path.join(self.root, "nvx-ref.py"),
            packages=("nvx_ref", "msgspec", "click"),
            body='from nvx_ref.cli import main\n\nsys.argv[0] = "nvx-ref"\nsys.exit(main())\n',
        )

    def run(self, command: Sequence[str]) -> Completed:
        """Run a command to its end."""
        return run(self, command)

    def expect(self, where: str, *, expected: object, found: object) -> None:
        """Judge one fact.

        Args:
            where: The step, operation or place that it is about.
            expected: What the contract allows.
            found: What a witness saw.

        Raises:
            Finding: They differ.
        """
        if expected != found:
            raise Finding(where, expected=shown(expected), found=shown(found))

    def environment(self) -> dict[str, str]:
        """Return the environment of everything that is started: this one without what would steer it.

        Temporary files go below the test's directory, where whatever stays is seen.
        """
        return {**environment(), "TMPDIR": os.path.join(self.root, TEMPORARY)}

    def sweep(self, *, judged: bool = True) -> str:
        """End everything of the test; return what was left that shouldn't have been, as text.

        Args:
            judged: Whether anybody wants to know: of a test that was cut short, or skipped in its midst, nothing is
                waited for, told or kept.
        """
        if self._swept:
            return self._left
        self._swept = True
        patience = ENDING if judged else 0
        late = [program for program in self._programs if not program.close(self.soon(patience))]
        self.channel.pump()
        left = [f"process of the orchestrator, pid {program.pid}, after the end of its requests" for program in late]
        left += sweep(
            host=self.host,
            processes=self.processes,
            evidence=self.evidence,
            places=Places(self.root, self.state, os.path.join(self.root, TEMPORARY), OWN_NAMES),
            grace=self.soon(GRACE if judged else 0),
            deadline=self.soon(ENDING),
        )
        if left and judged:
            self.keep()
            self._left = "\n".join(["the test left behind:", *(f"  {line}" for line in left)])
        return self._left

    def crash_figures(self, *, violated: bool) -> dict[str, int]:
        """Return what the report counts of this test.

        Args:
            violated: Whether a witness holds anything against the orchestrator.
        """
        crashes, started = len(self.crashes()), len(self._programs) + len(self.vmm.vms())
        return dict(zip(COUNTED, (crashes, int(violated), crashes, started), strict=True))

    def crashes(self) -> list[str]:
        """Return the crash points of this test's orchestrators."""
        return [crash for program in self._programs for crash in program.crashes]

    def story(self, finding: str) -> list[Moment]:
        """Return what happened in this test up to now, in order and without any capability, and what was found."""
        told = [moment for program in self._programs for moment in program.story]
        return stories.tell(told, self.vmm.vms() if os.path.isdir(self.root) else [], finding, self.evidence.redact)

    def command_line(self) -> dict[str, int]:
        """Return where the bytes of the longest kernel command line go that a guest of this test has seen."""
        return commandline.longest(self.vmm.guest_facts(vm).command_line for vm in self.vmm.vms())

    def keep(self) -> str:
        """Keep the evidence of the test, which nobody needs of one that passes, and return its directory."""
        self._kept = True
        if os.path.isdir(self.root):
            self.evidence.keep_files("state", [self.state])
            self.evidence.keep_files("said", [os.path.join(self.root, name) for name in ("out", "fake")])
            for number, program in enumerate(self._programs):
                self.evidence.keep(f"transcript-{number}.txt", b"".join(program.transcript))
            for one in self.processes.alive():
                self.evidence.keep(f"alive/{one.pin.pid}.txt", self.host.explain(one.pin.pid))
        return self.evidence.directory

    def close(self, *, judged: bool = True) -> str:
        """Sweep if nobody has, and remove the test's directory; return what was left, if nobody was told yet.

        Args:
            judged: See :meth:`sweep`.
        """
        told = self._swept
        left = self.sweep(judged=judged)
        self.vmm.close()
        self.channel.close()
        self.processes.close()
        # What is mounted here belongs to somebody else: nothing below it may go.
        if not self.host.mounts(self.root):
            remove_tree(self.root)
        if not self._kept:
            self.evidence.remove()
        return "" if told else left
