"""Linux: pidfds, flock, descriptors by number."""
