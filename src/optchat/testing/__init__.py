"""What people who embed the library test with; each module imports only what it needs."""
