"""Backends: which VMM the scenarios run on."""
