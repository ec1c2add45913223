"""Where items come from: one file per on-disk layout."""
