"""LTX-2 by Lightricks: clips, with or without their sound."""
