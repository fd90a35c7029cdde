"""LongCat-Image by Meituan: images."""
