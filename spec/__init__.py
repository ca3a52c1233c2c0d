"""What every room agrees on: catalogue, settings, trainer configuration, records and names.

Imports the standard library and pydantic only.
"""
