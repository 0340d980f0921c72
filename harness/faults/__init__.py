"""Faults that scenarios inject."""
