"""Measurements of speed: each prints a table and writes JSON."""
