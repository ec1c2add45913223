"""What embeds: the Embedder protocol, one file per family, presets."""
