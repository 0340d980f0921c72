"""What only Windows has: the twin of `fake_openvmm.linux`."""
