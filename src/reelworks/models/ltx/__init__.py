"""LTX-Video (Lightricks), text to video and picture."""
