"""The page: leaderboards, tasks and every query with its media, from runs on disk."""
