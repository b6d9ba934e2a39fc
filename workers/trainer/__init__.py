"""The trainer worker: model and optimizer of one run, rebuilt from checkpoint and stored batches when lost."""
