"""A stand-in for OpenVMM's microVM profile: an independent reading of the contract."""
