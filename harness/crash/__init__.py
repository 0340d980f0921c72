"""Crash points: where an orchestrator under test is ended, or one of its system calls fails, and what may be left.

A *scene* is an operation and what was before it. A counting run of a scene lists its *cells*: one crash point each, in
one of three independent ways (a named step, an event that Python reports, a system call), or a pair of steps, the
second one in the recovery from the first. A cell is run from an empty directory to a removed sandbox, and judged by
witnesses and by `goldens/allowed_states.json` alone.
"""
