"""The library that any loop needs: the catalog of footage, buckets, schedule, loader, checkpoints and records of runs."""
