"""HunyuanImage 2.1 by Tencent: images."""
