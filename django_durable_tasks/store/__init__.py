"""What differs between databases: connections, SQL, the clock, retries and error codes."""
