"""The reference orchestrator: it only composes what lies below."""
