"""Alembic migrations of the trajectory store; `psrl.activities.store.migrate` applies them."""
