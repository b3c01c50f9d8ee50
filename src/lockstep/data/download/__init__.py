"""Downloads of public datasets: from the first address that works, verified by SHA-256, whole or not at all."""
