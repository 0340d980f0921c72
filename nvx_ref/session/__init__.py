"""NVXS: the record layer between a host and OpenVMM's broker. It knows nothing of NVXC."""
