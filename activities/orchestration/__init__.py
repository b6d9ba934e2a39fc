"""Starting and cancelling workflows on behalf of a run."""
