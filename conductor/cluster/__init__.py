"""The cluster as the Conductor sees it."""
