"""HunyuanVideo 1.5 by Tencent: clips."""
