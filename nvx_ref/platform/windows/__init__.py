"""Windows: the four modules by its own calls (ctypes), and what they share."""
