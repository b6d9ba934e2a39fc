"""GSM8K as veRL has it: its Parquet columns and its reward's signature, taken as they are."""
