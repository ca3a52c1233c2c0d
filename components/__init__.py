"""Pulumi components: one file each, next to the pure functions that compute what they declare."""
