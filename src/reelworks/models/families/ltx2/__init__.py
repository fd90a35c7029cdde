"""LTX-2 by Lightricks: clips; its audio branch is not trained."""
