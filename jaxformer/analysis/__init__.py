"""Accounts of models: parameters, bytes."""
