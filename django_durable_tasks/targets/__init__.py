"""What the core knows of HTTP callbacks: addresses, requests, answers and endpoints."""
