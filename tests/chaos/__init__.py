"""Kill anything: a run on a real stack whose processes are ended with SIGKILL (`make chaos`)."""
