"""Published figures, one CSV for each suite: a row is a model, a column a task or mean, each cell as printed."""
