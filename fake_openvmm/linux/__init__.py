"""What only Linux has: the twin of `fake_openvmm.windows`."""
