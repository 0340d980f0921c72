"""The `nvx-ref` command."""
