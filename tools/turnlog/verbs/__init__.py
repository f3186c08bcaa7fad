"""One module a verb; each has a ``run`` that takes parsed options and returns an exit code."""
