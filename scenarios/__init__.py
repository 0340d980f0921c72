"""The contract as tests: each behaviour once, on every backend."""
