"""Published weight versions: the transports that carry them, and the rows that make them visible."""
