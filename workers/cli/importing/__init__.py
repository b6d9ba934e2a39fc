"""`psrl config import`: configuration of veRL and PSRL, read and translated into ours."""
