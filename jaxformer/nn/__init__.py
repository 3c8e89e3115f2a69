"""The parts that every architecture is composed of."""
