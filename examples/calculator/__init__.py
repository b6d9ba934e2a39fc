"""A small model learns to use a calculator: `examples/calculator/calculator.yaml`, docs/environments.md."""
