"""Decides. Values and functions from values to values: no I/O, no clock, no threads, no async, no SQL."""
