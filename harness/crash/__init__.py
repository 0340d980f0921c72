"""Crash points: where an orchestrator under test is ended."""
