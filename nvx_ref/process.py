"""Verified references to processes: never a bare PID."""
