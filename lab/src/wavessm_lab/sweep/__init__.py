"""Grids of training runs side by side, on this machine or on a Ray cluster."""
