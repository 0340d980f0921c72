"""Negative controls: each guard of the reference has a test that fails as soon as the guard is taken out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.seeded import ROOT, put

GUARDS = {
    "a held claim is looked at again": (
        "nvx_ref/store/claim.py",
        "is Claim.HELD and until.pause():",
        "is Claim.HELD and not until:",
        "tests/store/test_second_witness.py::test_the_second_witness_is_looked_at_again_for_a_while",
    ),
    "recovery looks at a held claim again": (
        "nvx_ref/store/recovery.py",
        "or not until.pause():",
        "or until:",
        "tests/supervisor/test_forks.py::test_a_claim_that_a_child_holds_before_its_exec_is_looked_at_again",
    ),
    "the claim counts on the claimed file alone": (
        "nvx_ref/store/claim.py",
        "files.claim_is_held(directory, names.LOG, log)",
        "files.claim_is_held(directory, names.LOG, (directory.stat(names.LOG) or directory).id)",
        "tests/store/test_recovery.py::test_a_log_that_was_replaced_proves_nothing",
    ),
    "a taken lock is compared with its name": (
        "nvx_ref/store/lock.py",
        "current = directory.is_current() and files.names_file(directory, names.LOCK, fd)",
        "current = True",
        "tests/store/test_lock.py::test_a_waiter_learns_of_the_removal_even_if_the_name_is_provisioned_anew",
    ),
    "the unique number decides": (
        "nvx_ref/process.py",
        "known = identity.pidfs_inode is not None and inode is not None",
        "known = False",
        "tests/platform/test_references.py::test_the_unique_number_decides",
    ),
    "a number of another namespace isn't asked": (
        "nvx_ref/process.py",
        "if identity.pid_namespace is not None and identity.pid_namespace != process.pid_namespace():",
        "if identity.pid_namespace == 0:",
        "tests/platform/test_references.py::test_another_pid_namespace_is_not_asked",
    ),
    "an earlier boot is exited": (
        "nvx_ref/process.py",
        "if identity.boot != process.boot_identity():",
        "if not identity.boot:",
        "tests/platform/test_references.py::test_an_earlier_boot_is_exited_without_a_look",
    ),
    "journal and record are compared by their launch": (
        "nvx_ref/store/recovery.py",
        "runtime is not None and runtime.launch_id == journal.launch_id:",
        "runtime is not None:",
        "tests/store/test_recovery.py::test_a_journal_of_another_launch_is_the_newer_one",
    ),
    "a removal has its order": (
        "nvx_ref/store/removal.py",
        "(*staged, *_ORDER, *store.caller.others, store.caller.configuration)",
        "(store.caller.configuration, *staged, *_ORDER, *store.caller.others)",
        "tests/store/test_removal.py::test_a_removal_deletes_in_its_order",
    ),
    "foreign entries are found before anything goes": (
        "nvx_ref/store/removal.py",
        "    _require_ours(store, found)\n",
        "",
        "tests/store/test_removal.py::test_foreign_entries_refuse_before_anything_is_deleted",
    ),
    "what isn't close-on-exec is refused": (
        "nvx_ref/platform/linux/spawn.py",
        "if not flags & fcntl.FD_CLOEXEC:",
        "if flags < 0:",
        "tests/platform/test_spawn.py::test_a_wrong_descriptor_is_refused_before_the_spawn",
    ),
    "a log that some process has isn't stopped": (
        "nvx_ref/store/evidence.py",
        "if log is not None and _claim(directory, log.id, deadline) is Claim.HELD:",
        "if log is not None and deadline is directory:",
        "tests/supervisor/test_reattach.py::test_no_record_and_a_log_that_some_process_has",
    ),
    "a copied record is nobody's": (
        "nvx_ref/store/evidence.py",
        "    if is_copied(directory, log, endpoint):\n",
        "    if found is directory:\n",
        "tests/supervisor/test_reattach.py::test_a_record_that_was_copied_from_another_directory",
    ),
    "forced is what the force has ended": (
        "nvx_ref/supervisor/vmm.py",
        "if self.process.ended_by_force() is False else",
        "if error is self else",
        "tests/supervisor/test_stop.py::test_a_vmm_that_ends_in_the_instant_of_the_signal_was_not_forced",
    ),
}
"""File, text, what takes its place, and the test that notices."""


@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_that_is_taken_out_is_missed(guard: str, tmp_path: Path) -> None:
    where, text, instead, test = GUARDS[guard]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", test, "-q", "-p", "no:randomly", "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(put(where, text, instead, tmp_path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    # It failed by what it asserts, and not because the copy can't be imported or the test is gone.
    assert re.search(r"^[1-9]\d* failed", done.stdout.splitlines()[-1]), done.stdout
    assert "ImportError" not in done.stdout
