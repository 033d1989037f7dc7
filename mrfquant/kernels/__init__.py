"""Loops over memory on the CPU, compiled by numba where it is installed."""
