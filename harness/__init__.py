"""The crash harness: runs an orchestrator in its own processes, kills it, restarts it and judges what it finds."""
