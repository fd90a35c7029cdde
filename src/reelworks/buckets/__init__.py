"""The bucket table and the assignment of clips to it: counts, reasons, held-out clips.

Vectorised over the whole catalog with numpy; knows core and the catalog's words. Reads and writes no
files.
"""
