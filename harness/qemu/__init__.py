"""What the `qemu` backend boots: a kernel of Debian's, an initramfs around this project's agent, and QEMU itself.

``nvx-harness setup qemu`` builds it, in :mod:`harness.qemu.setup`; what is built is found again by
:func:`harness.qemu.setup.find`.
"""
