"""When recurring work is due: pure values that answer next, previous and count."""
