"""Kandinsky 5 by Kandinsky Lab: clips and pictures."""
