"""Seeded faults: patches that each break one promise, and the proof that the tests notice every one of them."""
