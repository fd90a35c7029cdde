"""HunyuanVideo 1.5 (Tencent), text to video and picture."""
