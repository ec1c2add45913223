"""Items to vectors: plan, pipeline, store."""
