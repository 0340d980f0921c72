"""Write the JSON schemas of configurations, reports and the protocol: ``write_schemas.py [DIRECTORY]``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.report.model import Report
from harness.sut.messages import PROTOCOL, schema
from nvx_ref.images import Artifacts, DistroBinding, ScratchBinding
from nvx_ref.plan import ColdPlan, NetworkPolicy, json_schema

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.bench.measure import BenchReport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import msgspec

SCHEMAS: Mapping[str, type[msgspec.Struct]] = {
    "artifacts": Artifacts,
    "benchmarks": BenchReport,
    "cold-plan": ColdPlan,
    "distro-binding": DistroBinding,
    "network-policy": NetworkPolicy,
    "report": Report,
    "scratch-binding": ScratchBinding,
}


def main(arguments: Sequence[str]) -> int:
    """Write each schema to its file."""
    target = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1] / "docs" / "schema"
    target.mkdir(parents=True, exist_ok=True)
    texts = {name: json_schema(kind) for name, kind in SCHEMAS.items()} | {f"protocol-{PROTOCOL}": schema()}
    for name, text in texts.items():
        (target / f"{name}.json").write_bytes(text)
        print(target / f"{name}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
