"""The `nvx-harness` command."""
