"""What is measured: items, tasks, suites, measures, means. Imports no other room."""
