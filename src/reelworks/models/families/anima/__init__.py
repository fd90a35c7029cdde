"""Anima by CircleStone Labs: images."""
