"""One row per rule of contract openvmm 1 and 2, one test per rule of 3.1, 4 and 5: every one starts a real process."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.fake.front import rows_cmdline, rows_devices, rows_general, rows_network, rows_shares
from tests.support.openvmm_forks import Forks
from tests.support.openvmm_rows import Row, check
from tests.support.openvmm_stand import ROOT, Stand

TABLES = (rows_general, rows_devices, rows_network, rows_shares, rows_cmdline)
RULES = {rule: sentence for table in TABLES for rule, sentence in table.RULES.items()}
ROWS = [row for table in TABLES for row in table.ROWS]

TESTED = {
    "2.2 worked example": "test_command_line.test_the_worked_example",
    "2.2 worked example with a network": "test_command_line.test_the_worked_example_with_a_network",
    "2.2 order of the tokens": "test_command_line.test_shares_come_after_the_network",
    "2.3 limit of 2,047 bytes": "test_command_line.test_the_limit_counts_bytes_after_the_last_token",
    "2.3 older limit": "test_command_line.test_the_older_limit",
    "3.1 exactly 32 bytes": "test_capability.test_the_capability_is_read_and_shown_to_nobody",
    "3.1 not a pipe": "test_capability.test_what_is_no_pipe_is_refused",
    "3.1 fewer bytes": "test_capability.test_too_little_with_the_writer_closed",
    "3.1 would block": "test_capability.test_a_writer_that_is_still_open_is_not_waited_for",
    "3.1 more bytes": "test_capability.test_too_much",
    "3.1 zeros": "test_capability.test_zeros_only",
    "3.1 portb moves to stderr": "test_log.test_portb_bytes_are_raw_and_move_to_stderr_with_the_capability",
    "3.2 clients wait in the backlog": "test_endpoint.test_two_clients_may_connect_before_anybody_is_served",
    "4 destination": "test_report.test_a_bad_destination_is_left_alone_and_ends_the_run",
    "4 relative destination": "test_report.test_a_relative_destination_is_taken_from_the_working_directory",
    "4 six keys, pretty": "test_report.test_the_report_byte_for_byte",
    "4 staging and publication": "test_report.test_it_is_staged_and_then_published",
    "4 no overwrite": "test_report.test_it_never_replaces_what_came_in_between",
    "4 killed in the window": "test_report.test_a_kill_in_the_window_leaves_the_staging_file",
    "4 instance": "test_report.test_every_run_has_an_instance_of_its_own",
    "4 backend": "test_report.test_the_backend",
    "4 operation": "test_report.test_the_operation",
    "4 success and guest-exit": "test_report.test_the_guests_status_is_the_programs",
    "4 worker died": "test_report.test_a_worker_that_died_counts_as_a_guest_exit",
    "4 vmm-failure": "test_report.test_the_machine_may_fail_like_the_program",
    "4 teardown-failure": "test_report.test_a_teardown_failure",
    "4 network policy": "test_report.test_the_network_policy",
    "4 nothing private": "test_report.test_the_report_tells_no_secret",
    "5 line shape": "test_log.test_tracing_lines_have_their_shape",
    "5 level": "test_log.test_the_level_comes_from_the_environment",
    "5 help and version": "test_report.test_help_and_version_end_the_program_at_once",
    "5 signals": "test_endpoint.test_a_signal_kills_it_and_leaves_the_socket_and_no_report",
    "5 order of checks": "test_order.test_the_earliest_step_wins",
    "5 socket before images": "test_endpoint.test_the_socket_is_private_and_there_before_anything_is_opened",
    "5 failures remove the socket": "test_endpoint.test_a_later_failure_takes_the_socket_with_it",
}

# Every option that sections 1.1 to 1.6 of the contract name.
OPTIONS = [
    "allow-endpoint",
    "allow-host",
    "block-host",
    "cmdline",
    "cpu-fingerprint",
    "cpu-profile",
    "disk",
    "grpc",
    "host-loopback",
    "host-loopback-forward",
    "hypervisor",
    "initrd",
    "kernel",
    "machine",
    "memory",
    "microvm-control-auth-handle",
    "microvm-control-auth-stdin",
    "microvm-control-auth-timeout-ms",
    "microvm-control-console",
    "microvm-control-protocol-version",
    "microvm-host-control",
    "microvm-lifecycle",
    "microvm-report",
    "microvm-sandbox-block",
    "microvm-state-control",
    "microvm-workload-identity",
    "mount",
    "mount-aggregate",
    "mount-allow",
    "mount-child",
    "mount-deny",
    "mount-owner",
    "mount-write",
    "net",
    "net-tap",
    "network-egress",
    "network-egress-allow",
    "network-egress-deny",
    "network-ingress",
    "network-profile",
    "network-proxy",
    "nvme",
    "paused",
    "processors",
    "relay-console-path",
    "rpc",
    "single-process",
    "ttrpc",
    "virtio-blk",
    "virtio-console",
    "write-saved-state-proto",
]


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.rule} [{row.changes[:80]}]" for row in ROWS])
def test_a_rule(row: Row, stand: Stand, forks: Forks) -> None:
    check(row, stand, forks)


def test_every_rule_has_a_row() -> None:
    assert {row.rule for row in ROWS} == set(RULES)


@pytest.mark.parametrize("rule", TESTED)
def test_every_other_rule_has_a_test(rule: str) -> None:
    module, name = TESTED[rule].split(".")
    assert callable(getattr(importlib.import_module(f"tests.fake.front.{module}"), name))


def test_every_option_of_the_contract_has_a_row(tmp_path: Path) -> None:
    stand = Stand(tmp_path)
    named = {name for row in ROWS for name in re.findall(r"(?:^|[ !+~])(?:--)?([a-z][a-z0-9-]+)", row.changes)}
    named |= {name for name, _ in stand.base()}
    assert set(OPTIONS) <= named


def test_the_list_of_options_is_the_contracts() -> None:
    contract = ROOT.parent / "shared" / "contract" / "openvmm.md"
    if not contract.exists():
        pytest.skip(f"the contract isn't beside this repository ({contract})")
    text = contract.read_text()
    section = text[text.index("### 1.1 ") : text.index("### 1.7 ")]
    assert sorted(set(re.findall(r"`--([a-z0-9-]+)[`= ]", section))) == OPTIONS
