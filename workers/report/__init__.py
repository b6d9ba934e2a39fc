"""What a run did, from the store: numbers, a page with plots, TensorBoard events."""
