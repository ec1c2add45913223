"""Who does the batches of a plan: this process, or the workers of a cluster."""
