"""Programs that run beside the cluster by themselves. The components carry their source there; nothing imports them."""
