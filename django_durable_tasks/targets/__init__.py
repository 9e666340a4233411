"""Built-in durable tasks: what a row can do besides calling a body of the project."""
