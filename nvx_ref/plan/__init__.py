"""The cold plan: what to boot, typed and persistable, and the launch that it becomes."""
