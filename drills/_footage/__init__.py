"""Films of numbered frames as people have them, what the ffmpeg program shows of each, and what Reelworks makes of it."""
