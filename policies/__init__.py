"""What must never be deployed: a CrossGuard policy pack, and its rules as pure functions."""
