"""Group filters: may this complete group be trained on. A built-in by its name, a user's own by import path."""
