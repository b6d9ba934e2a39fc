"""Messages between parts: small, frozen, versioned pydantic models, one file per capability."""
