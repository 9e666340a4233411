"""The durable tasks that the package itself declares. Every worker registers them."""
