"""The markers that tests carry come from the plugin; nothing else is shared."""
