"""Generators of synthetic data sets: ListOps, Pathfinder, Path-X."""
