"""Compiling for hardware that is not here: what a step needs and takes, before a chip is rented."""
