"""`python -m fake_openvmm`."""

from fake_openvmm import main

main()
