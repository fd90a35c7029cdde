"""The folder of a catalog: its parts, its rows, and what was measured of them."""
