"""Linux: pidfds, descriptors and directories by descriptor, flock, AF_UNIX."""
