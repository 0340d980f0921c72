"""The supervisor of one VMM: launch, wait, stop, reattach."""
