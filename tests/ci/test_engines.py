"""What splits a run over machines asks for every shard once: the Kubernetes job and the CI matrix."""

from __future__ import annotations

import copy
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "ci" / "kubernetes" / "sweep.yaml"
WORKFLOW = ROOT / ".github" / "workflows" / "sweep.yml"
CONTAINERFILE = ROOT / "ci" / "Containerfile"
VERSION = "1.33"


def job() -> dict[str, Any]:
    return yaml.safe_load(JOB.read_text())


def container(document: dict[str, Any]) -> dict[str, Any]:
    (only,) = document["spec"]["template"]["spec"]["containers"]
    return only


def test_the_job_is_one_by_the_schema_of_kubernetes() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs the package kubernetes-validate (extra dev)")
    validate.validate(job(), VERSION, strict=True)
    spoilt = copy.deepcopy(job())
    spoilt["spec"]["completionmode"] = spoilt["spec"].pop("completionMode")
    with pytest.raises(validate.ValidationError):
        validate.validate(spoilt, VERSION, strict=True)


def test_each_index_of_the_job_runs_its_own_shard(tmp_path: Path) -> None:
    stub = tmp_path / "nvx-harness"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$*"\n')
    stub.chmod(0o755)
    document = job()
    spec, one = document["spec"], container(document)
    variables = {variable["name"]: variable["value"] for variable in one["env"]}
    assert spec["completionMode"] == "Indexed"
    count = spec["completions"]
    assert 0 < spec["parallelism"] <= count
    seen: list[str] = []
    for index in range(count):
        environment = {**variables, "JOB_COMPLETION_INDEX": str(index), "PATH": f"{tmp_path}{os.pathsep}{os.defpath}"}
        done = subprocess.run(
            [*one["command"], *one["args"]], env=environment, capture_output=True, text=True, check=True
        )
        found = re.fullmatch(r"sweep --sweep full --jobs 2 --shard (\S+) --report (\S+)\n", done.stdout)
        assert found is not None
        seen.append(found[1])
        assert found[2] == f"/reports/{index + 1}.json"
    assert seen == [f"{index}/{count}" for index in range(1, count + 1)]


def test_a_red_shard_is_not_tried_again_and_stops_no_other() -> None:
    spec = job()["spec"]
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (0, spec["completions"])
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_the_image_of_the_container_file_has_what_the_job_runs() -> None:
    steps = [line.partition(" ")[::2] for line in CONTAINERFILE.read_text().splitlines()]
    assert container(job())["workingDir"] == dict(steps)["WORKDIR"]
    # The command is the virtual environment's, whose directory is the first on the path.
    assert dict(steps)["ENV"] == "PATH=/venv/bin:$PATH"
    assert " ".join(container(job())["args"]).startswith("nvx-harness ")


def test_the_job_asks_for_no_right_that_it_does_not_need() -> None:
    pod = job()["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container(job())["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_matrix_asks_for_every_shard_once() -> None:
    shard = yaml.safe_load(WORKFLOW.read_text())["jobs"]["shard"]
    indexes = shard["strategy"]["matrix"]["shard"]
    (step,) = [step for step in shard["steps"] if "--shard" in step.get("run", "")]
    assert step["env"] == {"SHARD": "${{ matrix.shard }}"}
    assert indexes == [*range(1, len(indexes) + 1)]
    assert f'--shard "$SHARD/{len(indexes)}"' in step["run"]
