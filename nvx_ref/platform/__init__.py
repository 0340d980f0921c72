"""The only place that knows the operating system."""
