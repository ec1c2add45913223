"""Bytes to pixels and samples: image, video, audio."""
