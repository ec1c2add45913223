"""Ranks to findings: run record, means, tables."""
