"""The reference orchestrator of NVX sandboxes: small enough to read in an evening, right enough to copy."""
