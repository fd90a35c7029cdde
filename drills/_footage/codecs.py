"""Every pair of container and codec that the program makes, with and without frames out of order."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from pathlib import Path

from drills._footage.case import Case, Shop, Words, underlined

# Where a codec is not registered, the program refuses, and the pair is told as not made.
VIDEO = (
    ".mp4",
    ".mov",
    ".m4v",
    ".mkv",
    ".webm",
    ".avi",
    ".wmv",
    ".asf",
    ".flv",
    ".f4v",
    ".ts",
    ".m2ts",
    ".mpg",
    ".vob",
    ".mxf",
    ".ogv",
    ".3gp",
)
_MUXERS = {".m4v": "mp4", ".wmv": "asf", ".f4v": "f4v", ".m2ts": "mpegts", ".vob": "vob", ".mpg": "mpeg", ".ogv": "ogg"}

YUV420 = ("-pix_fmt", "yuv420p")
X264 = ("-c:v", "libx264", "-preset", "veryfast", "-crf", "8", *YUV420, "-g", "12")
X264_DEFAULT = ("-c:v", "libx264", *YUV420)
X265 = ("-c:v", "libx265", "-preset", "ultrafast", "-crf", "8", *YUV420)
QUALITY = ("-q:v", "2", "-g", "12")
MPEG4 = ("-c:v", "mpeg4", *QUALITY)
MPEG2 = ("-c:v", "mpeg2video", *QUALITY)
MPEG1 = ("-c:v", "mpeg1video", *QUALITY)
VP9 = ("-c:v", "libvpx-vp9", "-crf", "10", "-b:v", "0", "-cpu-used", "8", "-deadline", "realtime")
VP8 = ("-c:v", "libvpx", "-b:v", "1500k", "-cpu-used", "8", "-deadline", "realtime")
AV1 = ("-c:v", "libaom-av1", "-crf", "20", "-cpu-used", "8", "-usage", "realtime", "-row-mt", "0")


def x265(**settings: object) -> Words:
    """Return the words for libx265 with settings of its own, without its report."""
    told = {"log-level": "none", "pools": "1", "frame-threads": "1", "keyint": 12, "min-keyint": 12, **settings}
    return (*X265, "-x265-params", ":".join(f"{key}={value}" for key, value in told.items()))


_CODECS: dict[str, dict[str, Words]] = {
    "h264": {
        "plain": (*X264, "-bf", "0"),
        "b1": (*X264, "-bf", "1"),
        "b3": (*X264, "-bf", "3", "-b_strategy", "0"),
        "pyramid": (*X264, "-bf", "7", "-b_strategy", "0", "-x264-params", "b-pyramid=normal:ref=4"),
        "default": X264_DEFAULT,
    },
    "hevc": {
        "plain": x265(bframes=0),
        "b3": x265(bframes=3, **{"open-gop": 0, "b-adapt": 0}),
        "default": ("-c:v", "libx265", *YUV420, "-x265-params", "log-level=none:pools=1:frame-threads=1"),
        "pyramid": x265(bframes=7, **{"rc-lookahead": 20, "b-adapt": 0, "b-pyramid": 1}),
    },
    "mpeg4": {"plain": (*MPEG4, "-bf", "0"), "b2": (*MPEG4, "-bf", "2")},
    "mpeg2": {
        "plain": (*MPEG2, "-bf", "0"),
        "b2": (*MPEG2, "-bf", "2"),
        "default": ("-c:v", "mpeg2video", "-q:v", "2"),
    },
    "mpeg1": {"plain": (*MPEG1, "-bf", "0"), "b2": (*MPEG1, "-bf", "2")},
    "av1": {"plain": AV1, "default": ("-c:v", "libaom-av1", "-crf", "20", "-cpu-used", "6", "-lag-in-frames", "19")},
    "svtav1": {"default": ("-c:v", "libsvtav1", "-crf", "15", "-preset", "10")},
    "vp8": {"plain": VP8, "altref": ("-c:v", "libvpx", "-b:v", "900k", "-auto-alt-ref", "1", "-lag-in-frames", "16")},
    "vp9": {
        "plain": VP9,
        "altref": ("-c:v", "libvpx-vp9", "-b:v", "900k", "-auto-alt-ref", "1", "-lag-in-frames", "16"),
    },
}
_EVERYWHERE = set(VIDEO)
_ISO = {".mp4", ".mov", ".m4v", ".f4v", ".3gp"}
_FREE = {".mkv", ".webm"}
_STREAMS = {".ts", ".m2ts", ".mpg", ".vob"}
_TAKES = {
    "h264": _EVERYWHERE - {".webm", ".ogv"},
    "hevc": {".mp4", ".mov", ".m4v", ".mkv", ".avi", ".ts", ".m2ts", ".vob", ".flv"},
    "mpeg4": {".mp4", ".mov", ".m4v", ".mkv", ".avi", ".wmv", ".asf", ".ts", ".m2ts", ".vob", ".3gp"},
    "mpeg2": {".mp4", ".mov", ".mkv", ".avi", ".asf", ".wmv", ".mxf"} | _STREAMS,
    "mpeg1": {".mp4", ".mov", ".mkv", ".avi", ".asf", ".wmv"} | _STREAMS,
    "av1": _FREE | {".mp4", ".mov", ".avi", ".wmv", ".flv"},
    "svtav1": {".mp4", ".mkv", ".webm"},
    "vp8": _FREE | {".avi", ".ogv", ".asf"},
    "vp9": _FREE | {".mp4", ".mov", ".avi", ".asf"},
}
# Codecs of one structure: their words, and the containers that are tried.
_SIMPLE: dict[str, tuple[Words, str]] = {
    "msmpeg4v2": (("-c:v", "msmpeg4v2", *QUALITY), ".avi .wmv .asf .mkv .mov"),
    "msmpeg4v3": (("-c:v", "msmpeg4", *QUALITY), ".avi .wmv .asf .mkv .mov"),
    "wmv1": (("-c:v", "wmv1", *QUALITY), ".wmv .asf .avi .mkv"),
    "wmv2": (("-c:v", "wmv2", *QUALITY), ".wmv .asf .avi .mkv"),
    "flv1": (("-c:v", "flv", *QUALITY), ".flv .avi .mkv"),
    "h263": (("-c:v", "h263", *QUALITY), ".3gp .mov .avi"),
    "h263p": (("-c:v", "h263p", *QUALITY), ".avi .mkv"),
    "h261": (("-c:v", "h261", "-q:v", "2"), ".avi .mov .mkv"),
    "theora": (("-c:v", "libtheora", "-q:v", "9"), ".ogv .mkv .avi"),
    "snow": (("-c:v", "snow", "-q:v", "2", "-strict", "-2"), ".avi .mkv"),
    "mjpeg": (("-c:v", "mjpeg", "-q:v", "2", "-pix_fmt", "yuvj420p"), ".avi .mov .mp4 .mkv .asf"),
    "mjpeg422": (("-c:v", "mjpeg", "-q:v", "2", "-pix_fmt", "yuvj422p"), ".avi .mov .mkv"),
    "ljpeg": (("-c:v", "ljpeg", "-pix_fmt", "bgr24", "-strict", "-1"), ".avi .mov .mkv"),
    "jpegls": (("-c:v", "jpegls"), ".avi .mkv .mov"),
    "jpeg2000": (("-c:v", "jpeg2000"), ".mov .mkv .mxf .avi"),
    "prores": (("-c:v", "prores_ks", "-profile:v", "3"), ".mov .mkv"),
    "prores4444": (("-c:v", "prores_ks", "-profile:v", "4444", "-pix_fmt", "yuv444p10le"), ".mov .mkv"),
    "dnxhr": (("-c:v", "dnxhd", "-profile:v", "dnxhr_hq", "-pix_fmt", "yuv422p"), ".mov .mxf .mkv .avi"),
    "cfhd": (("-c:v", "cfhd"), ".mov .avi .mkv"),
    "vc2": (("-c:v", "vc2", "-strict", "-1"), ".mov .mkv"),
    "ffv1": (("-c:v", "ffv1", "-level", "3"), ".mkv .avi .mov"),
    "ffv1_yuv": (("-c:v", "ffv1", "-level", "1", "-context", "1", *YUV420), ".mkv .avi"),
    "huffyuv": (("-c:v", "huffyuv", "-pix_fmt", "yuv422p"), ".avi .mkv .mov"),
    "huffyuv_rgb": (("-c:v", "huffyuv", "-pix_fmt", "rgb24"), ".avi .mkv"),
    "ffvhuff": (("-c:v", "ffvhuff", *YUV420), ".avi .mkv"),
    "utvideo": (("-c:v", "utvideo", *YUV420), ".avi .mov .mkv"),
    "utvideo_rgb": (("-c:v", "utvideo", "-pix_fmt", "gbrp"), ".avi .mkv"),
    "magicyuv": (("-c:v", "magicyuv", "-pix_fmt", "gbrp"), ".avi .mkv"),
    "qtrle": (("-c:v", "qtrle"), ".mov"),
    "png": (("-c:v", "png"), ".mov .avi .mkv .mp4"),
    "tiff": (("-c:v", "tiff"), ".mov .mkv"),
    "bmp": (("-c:v", "bmp"), ".avi"),
    "targa": (("-c:v", "targa"), ".avi .mov .mkv"),
    "raw_bgr": (("-c:v", "rawvideo", "-pix_fmt", "bgr24"), ".avi .mov"),
    "raw_rgb": (("-c:v", "rawvideo", "-pix_fmt", "rgb24"), ".mov"),
    "raw_pal": (("-c:v", "rawvideo", "-pix_fmt", "pal8"), ".avi .mov"),
    "raw_420": (("-c:v", "rawvideo", *YUV420), ".avi .mkv"),
    "raw_uyvy": (("-c:v", "rawvideo", "-pix_fmt", "uyvy422"), ".avi .mov .mkv"),
    "v210": (("-c:v", "v210"), ".mov .avi .mkv"),
    "v308": (("-c:v", "v308"), ".mov .avi"),
    "v410": (("-c:v", "v410"), ".mov .avi"),
    "r210": (("-c:v", "r210"), ".mov .avi"),
    "cinepak": (("-c:v", "cinepak", "-q:v", "1"), ".avi .mov"),
    "msvideo1": (("-c:v", "msvideo1"), ".avi"),
    "rpza": (("-c:v", "rpza"), ".mov"),
    "smc": (("-c:v", "smc"), ".mov"),
    "svq1": (("-c:v", "svq1", "-q:v", "1"), ".mov .mkv"),
    "zlib": (("-c:v", "zlib"), ".avi .mkv"),
    "zmbv": (("-c:v", "zmbv"), ".avi .mkv"),
    "flashsv": (("-c:v", "flashsv"), ".flv"),
    "flashsv2": (("-c:v", "flashsv2"), ".flv"),
    "xvid": (("-c:v", "libxvid", "-q:v", "2", "-bf", "2"), ".avi .mkv .mp4"),
    "speedhq": (("-c:v", "speedhq", "-q:v", "2"), ".mov .mkv"),
    "asv1": (("-c:v", "asv1", "-q:v", "2"), ".avi .asf"),
    "asv2": (("-c:v", "asv2", "-q:v", "2"), ".avi"),
    "hap": (("-c:v", "hap"), ".mov .avi"),
    "amv": (("-c:v", "mjpeg", "-q:v", "2", "-pix_fmt", "yuvj444p"), ".avi .mov"),
}
# Films of PAL size, which some codecs want.
_DV = {"dv_pal": ".avi .mov .mkv .mxf"}
# Other pixels of codecs that have them.
_PIXELS: dict[str, Words] = {
    "h264_422": (*X264, "-pix_fmt", "yuv422p"),
    "h264_444": (*X264, "-pix_fmt", "yuv444p"),
    "h264_10": (*X264, "-pix_fmt", "yuv420p10le"),
    "h264_422_10": (*X264, "-pix_fmt", "yuv422p10le"),
    "h264_gray": (*X264, "-pix_fmt", "gray"),
    "h264_full": (*X264, "-pix_fmt", "yuvj420p"),
    "h264_rgb": ("-c:v", "libx264rgb", "-crf", "8", "-g", "12"),
    "hevc_422": (*x265(bframes=2), "-pix_fmt", "yuv422p"),
    "hevc_444": (*x265(bframes=2), "-pix_fmt", "yuv444p"),
    "hevc_10": (*x265(bframes=2), "-pix_fmt", "yuv420p10le"),
    "hevc_12": (*x265(bframes=2), "-pix_fmt", "yuv420p12le"),
    "hevc_gray": (*x265(bframes=2), "-pix_fmt", "gray"),
    "hevc_gbr": (*x265(bframes=2), "-pix_fmt", "gbrp"),
    "vp9_422": (*VP9, "-pix_fmt", "yuv422p"),
    "vp9_444": (*VP9, "-pix_fmt", "yuv444p"),
    "vp9_gbr": (*VP9, "-pix_fmt", "gbrp"),
    "vp9_10": (*VP9, "-pix_fmt", "yuv420p10le"),
    "av1_444": (*AV1, "-pix_fmt", "yuv444p"),
    "av1_10": (*AV1, "-pix_fmt", "yuv420p10le"),
    "mpeg2_422": (*MPEG2, "-pix_fmt", "yuv422p", "-bf", "2"),
    "ffv1_16": ("-c:v", "ffv1", "-pix_fmt", "gbrp16le"),
    "ffv1_gray16": ("-c:v", "ffv1", "-pix_fmt", "gray16le"),
    "ffv1_444_10": ("-c:v", "ffv1", "-pix_fmt", "yuv444p10le"),
    "ffv1_410": ("-c:v", "ffv1", "-pix_fmt", "yuv410p"),
    "ffv1_411": ("-c:v", "ffv1", "-pix_fmt", "yuv411p"),
    "ffv1_440": ("-c:v", "ffv1", "-pix_fmt", "yuv440p"),
    "huff_gray": ("-c:v", "ffvhuff", "-pix_fmt", "gray"),
    "png_gray": ("-c:v", "png", "-pix_fmt", "gray"),
    "png_pal": ("-c:v", "png", "-pix_fmt", "pal8"),
    "png_48": ("-c:v", "png", "-pix_fmt", "rgb48be"),
}
_FOR_PIXELS = {"vp9": ".webm", "av1": ".mp4", "mpeg": ".ts", "h264": ".mp4", "hevc": ".mp4"}


def _words(codec: str, suffix: str, words: Words) -> Words:
    """Add what a container wants of a codec."""
    added: list[object] = []
    if suffix == ".avi" and codec in ("h264", "hevc"):
        added += (
            ["-bsf:v", f"{codec}_mp4toannexb"] if codec == "h264" else ["-bsf:v", "hevc_mp4toannexb", "-tag:v", "HEVC"]
        )
    if codec == "hevc" and suffix in _ISO:
        added += ["-tag:v", "hvc1"]
    if suffix in _MUXERS:
        added += ["-f", _MUXERS[suffix]]
    return (*words, *added)


def _film(words: Words, size: tuple[int, int], rate: str, shop: Shop, path: Path) -> None:
    shop.film(path, words, size=size, rate=rate)


def _case(name: str, suffix: str, words: Words) -> Case:
    size, rate = (128, 96), "24"
    codec = name.partition("_")[0]
    if codec in ("h263", "h261"):  # of these sizes alone
        rate = "30000/1001"
    if codec == "dv":
        size, rate = (720, 576), "25"
    if suffix == ".mxf" and codec in ("mpeg2", "prores", "dnxhr", "h264", "jpeg2000"):
        rate = "25"  # a container of broadcasts: other rates are refused
    if codec == "h261":
        size = (176, 144)
    if codec == "dnxhr":
        size = (256, 128)  # the smallest
    make = partial(_film, _words(codec, suffix, words), size, rate)
    # Of broadcast containers the program tells uneven times; libxvid leaves frames out.
    return Case(f"{name}{underlined(suffix)}", suffix, make, rate=float(Fraction(rate)), guessed=codec == "xvid")


def cases() -> list[Case]:
    """Return the cases of codecs in containers."""
    found = []
    for codec, structures in _CODECS.items():
        for suffix in VIDEO:
            if suffix in _TAKES[codec]:
                found += [_case(f"{codec}_{name}", suffix, words) for name, words in structures.items()]
    for name, (words, suffixes) in _SIMPLE.items():
        found += [_case(name, suffix, words) for suffix in suffixes.split()]
    for name, suffixes in _DV.items():
        found += [_case(name, suffix, ("-c:v", "dvvideo", "-pix_fmt", "yuv420p")) for suffix in suffixes.split()]
    found += [_case(name, _FOR_PIXELS.get(name.partition("_")[0], ".mkv"), words) for name, words in _PIXELS.items()]
    return found
