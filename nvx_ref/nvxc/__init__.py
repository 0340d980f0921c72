"""NVXC: the application protocol of NVX's guest agent, an adapter over an NVXS session."""
