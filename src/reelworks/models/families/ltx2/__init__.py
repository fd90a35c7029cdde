"""LTX-2 by Lightricks: clips; its branch for sound is not trained."""
