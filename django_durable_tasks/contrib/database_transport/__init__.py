"""A broker in a database of Django: the transport ``durable-database://`` of Kombu."""
