"""Benchmarks run as they are on little data, and their arithmetic is right."""
