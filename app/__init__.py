"""The service: HTTP, night, engine. Imports trainers, verifiers and storage; nothing imports it."""
