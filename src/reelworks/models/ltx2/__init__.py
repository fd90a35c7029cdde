"""LTX-2 and LTX-2.3 (Lightricks), text to video and picture; their sound is left as it is."""
