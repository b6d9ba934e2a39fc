"""Protocol buffers between processes. Generated files are committed; `make proto` makes them anew."""
