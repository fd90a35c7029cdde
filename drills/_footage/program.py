"""Ask the ffmpeg program, which is not ours, to make a film, and which frames it shows of one, at which times."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
from numbered_frames import Frame
from numpy.typing import NDArray

HOW_TO_GET = "there is no program ffmpeg: install a distribution's package, or `pip install imageio-ffmpeg`"
_SECONDS = 60.0  # after which the program hangs
_WHITE = 255.0
_TIME = re.compile(r"\[info\] n: *(\d+) pts: *(-?\d+|NOPTS) .*? sar:(\d+)/(\d+) s:(\d+)x(\d+) i:(.) ")
_BASE = re.compile(r"\[info\] config in time_base: (\d+)/(\d+)")


class ProgramError(Exception):
    """The program cannot do what is asked; the message is its own."""


@lru_cache(maxsize=1)
def find() -> str | None:
    """Return the path of the program: the installed one, else that of the package imageio-ffmpeg."""
    if (found := shutil.which("ffmpeg")) is not None:
        return found
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        return None
    return str(importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe())


@lru_cache(maxsize=1)
def version() -> tuple[int, ...]:
    """Return the program's version, as (5, 1)."""
    told = subprocess.run(
        [str(find()), "-version"], capture_output=True, text=True, check=True, encoding="utf-8"
    ).stdout
    found = re.match(r"ffmpeg version n?(\d+)\.(\d+)", told)
    return (int(found[1]), int(found[2])) if found else (99, 0)  # a build of a day, newer than any release


def run(*words: object, stdin: bytes | None = None, program: str | None = None) -> bytes:
    """Run the program with these words and return what it writes; raise `ProgramError` if it fails."""
    command = [program] if program else [str(find()), "-hide_banner", "-loglevel", "error", "-y"]
    try:
        done = subprocess.run([*command, *map(str, words)], input=stdin, capture_output=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise ProgramError(f"no end after {_SECONDS:.0f} s") from None
    if done.returncode:
        raise ProgramError(_last_line(done.stderr))
    return done.stdout


def _last_line(told: bytes) -> str:
    lines = [line.strip() for line in told.decode(errors="replace").splitlines() if line.strip()]
    return next(
        (line for line in lines if "Error" in line or "not " in line), lines[-1] if lines else "no reason told"
    )[-200:]


@dataclass(frozen=True)
class Shown:
    """Frames that a film shows, in their order, and what was said of them."""

    frames: list[Frame]  # each [H, W, 3], over white
    seconds: NDArray[np.float64]  # of each frame; not a number where none is told
    pixel_shape: Fraction = Fraction(1)  # width to height of a pixel of the first frame
    interlaced: bool = False
    complaints: tuple[str, ...] = ()  # errors that the program told while it decoded


def show(
    path: Path, *, stream: int = 0, decoder: str | None = None, filters: str = "", size: tuple[int, int] | None = None
) -> Shown:
    """Decode a film as players do: turned, deinterlaced, in the size and shape of pixels that it has, or scaled to a size."""
    found = _decode(path, stream, decoder, filters, size)
    if found.interlaced and not filters:
        return _decode(path, stream, decoder, "bwdif=mode=send_frame:deint=interlaced,", size)
    return found


def _decode(path: Path, stream: int, decoder: str | None, filters: str, size: tuple[int, int] | None) -> Shown:
    scale = "flags=bicubic+accurate_rnd+full_chroma_int+full_chroma_inp"
    scale = f"scale={size[0]}:{size[1]}:{scale}" if size else f"scale={scale}"
    command = [str(find()), "-hide_banner", "-nostdin", "-nostats", "-loglevel", "level+info", "-threads", "1"]
    command += ["-apply_cropping", "codec"] if version() >= (7, 1) else []
    command += ["-c:v", decoder] if decoder else []
    command += ["-i", str(path), "-map", f"0:v:{stream}", "-vf", f"showinfo=checksum=0,{filters}{scale},format=rgba"]
    command += ["-fps_mode", "passthrough"] if version() >= (5, 1) else ["-vsync", "passthrough"]
    command += ["-f", "image2pipe", "-c:v", "pam", "-"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise ProgramError(f"no end after {_SECONDS:.0f} s") from None
    told = done.stderr.decode(errors="replace")
    frames = _pictures(done.stdout)
    if not frames:
        raise ProgramError(_last_line(done.stderr))
    return _told(told, frames)


def _told(told: str, frames: list[Frame]) -> Shown:
    base = Fraction(*map(int, found.groups())) if (found := _BASE.search(told)) else Fraction(1)
    lines = _TIME.findall(told)
    seconds = np.array([float("nan") if pts == "NOPTS" else float(int(pts) * base) for _, pts, *_ in lines])
    _, _, wide, high, *_ = lines[0] if lines else (0, 0, 1, 1)
    ratio = Fraction(int(wide), int(high)) if int(wide) > 0 and int(high) > 0 else Fraction(1)
    errors = re.findall(r"^(?:\[[^]]*\] )?\[(?:error|fatal)\] (.*)$", told, re.MULTILINE)
    interlaced = any(line[-1] in "TB" for line in lines)
    return Shown(frames, seconds[: len(frames)], ratio, interlaced, tuple(dict.fromkeys(errors)))


def _pictures(data: bytes) -> list[Frame]:
    """Read pictures in the format PAM one after the other, and lay them over white."""
    found, at = [], 0
    while at < len(data):
        end = data.index(b"ENDHDR\n", at) + 7
        words = dict(line.split(maxsplit=1) for line in data[at:end].decode().splitlines() if " " in line)
        width, height = int(words["WIDTH"]), int(words["HEIGHT"])
        at = end + width * height * 4
        pixels = np.frombuffer(data[end:at], np.uint8).reshape(height, width, 4)
        found.append(over_white(pixels))
    return found


def over_white(pixels: NDArray[np.uint8]) -> Frame:
    """Lay a picture [H, W, 4] over white."""
    alpha = pixels[..., 3:].astype(np.float32) / 255
    return np.round(pixels[..., :3] * alpha + _WHITE * (1 - alpha)).astype(np.uint8)


def has(tool: str) -> bool:
    """Return whether another program is installed."""
    return shutil.which(tool) is not None
