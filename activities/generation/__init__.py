"""What a generation stores, and how it finds its turn again."""
