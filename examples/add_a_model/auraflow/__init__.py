"""AuraFlow by fal: images."""
