"""A real Linux guest behind the front: QEMU in place of the guest model, at the side file's request.

The options, the checks, the effective command line, the broker and the report stay the front's. QEMU is owned by the
process that they run in and never outlives it; the agent in `agent/` is the guest's init.
"""
