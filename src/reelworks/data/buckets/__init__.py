"""The bucket table, and the assignment of clips to buckets or to reasons why they have none.

Vectorised with numpy over a catalog; imports core and the catalog's row types, and reads and writes no files.
"""
