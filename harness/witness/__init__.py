"""Witnesses: what is true of processes, files and descriptors, whatever the orchestrator says."""
