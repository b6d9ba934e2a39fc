"""`psrl calibrate`: what an engine costs, measured on the engine at hand and written as the cost model's file."""
