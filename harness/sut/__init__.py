"""The orchestrator under test, in a process of its own, driven over JSON lines."""
