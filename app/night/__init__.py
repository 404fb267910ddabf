"""One night: plan, split, train, gate, publish."""
