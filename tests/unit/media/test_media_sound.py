"""Sound is read from the time of a clip's first frame on, at the rate that a model wants."""

import contextlib
import dataclasses
from fractions import Fraction

import av
import media_makers
import numpy as np
import pytest
import sound_clips
from diffusers.modular_pipelines import minimax_h3

from reelworks.core.shape import Shape
from reelworks.data.media import decode, probe, sound
from reelworks.data.media.decode import Request
from reelworks.data.media.decode_pool import DecodePool, Failure
from reelworks.data.media.formats import ProbeError
from reelworks.data.media.frame_times import read as read_times
from reelworks.data.media.reading import MediaError
from reelworks.data.media.sound import SoundRequest, SoundSpec

RATE, FPS = 16_000, 24
EVENTS = [0.5, 2.5, 5.0, 7.5, 9.75]
FILES = {
    "aac.mp4": {},
    "later.mp4": {"offset": 3.0},
    "pcm.mkv": {"audio": "pcm_s16le", "rate": 48_000, "channels": 1},
    "opus.webm": {"video": "libvpx-vp9", "audio": "libopus", "rate": 48_000},
    "broadcast.ts": {"offset": 1.4},
    "ntsc.mp4": {"fps": 30_000 / 1001},
}


def request(path, frames, *, rate=RATE, channels=2, fps=FPS, silence=False, **changes):
    clip = Request(path, False, Shape(frames, sound_clips.SIZE, sound_clips.SIZE), **changes)
    return SoundRequest(clip, rate, channels, int(frames * clip.step / fps * rate), silence)


def beeps(samples, rate=RATE):
    """Seconds at which a tone begins."""
    window = rate // 200
    loud = np.convolve(np.abs(samples[:, 0].astype(float)), np.ones(window) / window, "same") > 3000
    return sound_clips.onsets(loud, rate)


def flashes(frames, fps):
    return sound_clips.onsets(frames.mean((1, 2, 3)) > 128, fps)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.quick_cases(3)
def test_picture_and_sound_drift_by_less_than_a_frame(tmp_path, name):
    """Over 10 s, and in a part of the file that begins anywhere: each flash has its beep."""
    path, fps = tmp_path / name, FILES[name].get("fps", FPS)
    sound_clips.write(path, seconds=10, events=EVENTS, **FILES[name])
    for frames, draw in ((round(10 * fps), 0.0), (round(4 * fps), 0.63)):
        asked = request(path, frames, fps=fps, first_frame_draw=draw)
        seen, heard = flashes(decode.load(asked.clip), fps), beeps(sound.load(asked))
        assert len(seen) == len(heard) >= 2
        assert np.abs(seen - heard).max() < 1 / fps


def test_thinned_frames_keep_their_sound(tmp_path):
    """Every second frame of a clip lasts twice as long, and so does what is heard."""
    path = tmp_path / "clip.mp4"
    sound_clips.write(path, seconds=10, events=EVENTS)
    asked = request(path, 120, step=2.0)
    samples = sound.load(asked)
    assert len(samples) == 10 * RATE
    np.testing.assert_allclose(beeps(samples), flashes(decode.load(asked.clip), FPS / 2), atol=1 / FPS)


@pytest.mark.parametrize(("name", "audio"), [("clip.mp4", "aac"), ("clip.avi", "pcm_s16le")])
def test_a_range_of_a_file_and_a_known_place_begin_with_their_frames(tmp_path, name, audio):
    """Also in a container of times of decoding, by which frames are sought, and which are not those of showing."""
    path = tmp_path / name
    sound_clips.write(path, seconds=10, events=EVENTS, audio=audio)
    asked = request(path, 48, first_frame=48, num_frames=48)
    whole, part = sound.load(request(path, 240)), sound.load(asked)
    # Each reading begins at a whole sample of the new rate, at most half of one beside the other's: 2300 of this tone.
    assert np.abs(whole[2 * RATE : 4 * RATE].astype(int) - part).max() < 2300
    ticks = decode.find_ticks(asked.clip, read_times(path), interlaced=False)
    known = request(path, 48, first_frame=48, num_frames=48, frame_ticks=ticks)
    assert np.array_equal(sound.load(known), part)


def test_sound_that_begins_late_or_ends_early_is_silent_there(tmp_path):
    path = tmp_path / "late.mp4"
    sound_clips.write(path, seconds=2, events=[1.0], late=0.75)
    samples = sound.load(request(path, 72, short_clips="hold"))
    assert len(samples) == 3 * RATE
    assert not samples[: RATE // 2].any()
    assert not samples[int(2.2 * RATE) :].any()
    assert beeps(samples) == pytest.approx([1.0], abs=0.01)


def test_a_seek_that_misses_the_beginning_costs_no_sound(tmp_path, monkeypatch):
    """As with files whose index is wrong."""
    path = tmp_path / "a.mkv"
    sound_clips.write(path, seconds=6, events=[1, 2, 3, 4, 5])
    known = request(path, 48, first_frame=60, num_frames=48)
    whole = sound.load(known)
    monkeypatch.setattr(sound, "_PREROLL_SECONDS", -1.0)
    assert beeps(sound.load(known)) == pytest.approx(beeps(whole), abs=0.01)
    assert len(beeps(whole)) == 2


def test_sound_is_read_from_any_place_of_a_program_stream(tmp_path):
    """Which can be sought to the middle of a frame of sound alone."""
    path = tmp_path / "tape.mpg"
    sound_clips.write(path, seconds=6, events=[1, 2, 3, 4, 5], video="mpeg2video", audio="mp2", rate=48_000)
    whole, seconds = sound.load(request(path, 144)).astype(int), read_times(path).seconds
    for first in range(24, 120, 12):
        part = sound.load(request(path, 24, first_frame=first, num_frames=24))
        assert np.abs(whole[round(seconds[first] * RATE) :][:RATE] - part).max() < 2300  # as above


@pytest.mark.parametrize(("name", "offset"), [("a.mp4", 0), ("a.mp4", 3), ("a.ts", 1.4), ("a.mkv", 100)])
def test_a_track_begins_with_its_file_whatever_the_time_of_its_container(tmp_path, name, offset):
    sound_clips.write(tmp_path / name, seconds=3, events=[0.5, 2], offset=offset)
    samples = sound.load_track(request(tmp_path / name, 72))
    assert beeps(samples) == pytest.approx([0.5, 2], abs=1 / FPS)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("known", [False, True])
def test_a_held_range_of_a_film_is_silent_behind_its_end(tmp_path, known, step):
    """As the same range in a file of its own is; what follows is the sound of another clip."""
    path = tmp_path / "clip.mkv"
    sound_clips.write(
        path, seconds=3, events=[0.5, 1.13, 2.5], audio="pcm_s16le"
    )  # the second between the last frame in use and the end
    asked = request(path, 48 // step, step=step, first_frame=12, num_frames=16, short_clips="hold")
    if known:
        ticks = decode.find_ticks(asked.clip, read_times(path), interlaced=False)
        asked = dataclasses.replace(asked, clip=dataclasses.replace(asked.clip, frame_ticks=ticks))
    samples = sound.load(asked)
    assert beeps(samples) == pytest.approx([0, 0.63], abs=0.01)
    assert not samples[round(16 / FPS * RATE) + RATE // 1000 :].any()  # as exactly as Matroska tells times
    assert beeps(sound.load(request(path, 48, first_frame=12, num_frames=48))) == pytest.approx([0, 0.63], abs=0.01)


def test_mono_is_copied_and_stereo_is_mixed(tmp_path):
    one, two = tmp_path / "one.mkv", tmp_path / "two.mkv"
    for path, channels in ((one, 1), (two, 2)):
        sound_clips.write(path, seconds=1, events=[0.5], channels=channels, audio="pcm_s16le")
    as_two, as_one = sound.load(request(one, 24)), sound.load(request(two, 24, channels=1))
    assert np.array_equal(as_two[:, 0], as_two[:, 1])
    assert as_two.max() == pytest.approx(0.8 * 32767, rel=0.02)
    assert as_one.shape == (RATE, 1)
    assert as_one.max() == pytest.approx(0.8 * 32767, rel=0.02)


def test_frames_are_one_run_as_long_as_they_follow_each_other_and_are_of_one_kind():
    """As where a broadcast turns from mono to stereo, which is resampled anew."""
    mono, stereo = (
        av.AudioFrame.from_ndarray(np.zeros((1, channels * RATE), np.int16), format="s16", layout=layout)
        for channels, layout in ((1, "mono"), (2, "stereo"))
    )
    mono.sample_rate = stereo.sample_rate = RATE
    run = sound._Gapless(request("clip.ts", 24), 0, 5.0, mono)
    run.add(mono)
    assert [run.continues(seconds, mono) for seconds in (5.97, 5.99, 6.01, 6.03)] == [False, True, True, False]
    assert not run.continues(6.0, stereo)


def test_a_file_without_sound_is_refused_or_silent(tmp_path):
    path = tmp_path / "mute.mp4"
    media_makers.write(path, np.zeros((24, 64, 64, 3), np.uint8))
    assert probe.probe(path).sound == ""
    with pytest.raises(MediaError, match="has no sound"):
        sound.load(request(path, 24))
    assert not sound.load(request(path, 24, silence=True)).any()


@pytest.mark.parametrize("code", [b"apac", b"mha1", b"ac-4", b"enca", b"xyzw"])
def test_a_track_of_sound_that_nothing_decodes_is_as_if_it_were_not_there(tmp_path, code):
    """As that of phones beside their usual one: a video is measured and read all the same, with the next track that can be."""
    path = tmp_path / "clip.mp4"
    sound_clips.write(path, seconds=1, events=[0.5])
    found, whole = probe.probe(path), path.read_bytes()
    path.write_bytes(whole.replace(b"mp4a", code).replace(b"esds", b"free"))
    with av.open(str(path)) as container:
        assert [track.codec_context for track in container.streams.audio] == [None]
    assert probe.probe(path) == dataclasses.replace(found, sound="")
    assert len(decode.load(request(path, 24).clip)) == 24
    for read in (sound.load, sound.load_track):
        with pytest.raises(MediaError, match="has no sound that can be decoded"):
            read(request(path, 24))
    assert not sound.load(request(path, 24, silence=True)).any()
    path.rename(tmp_path / "alone.m4a")
    with pytest.raises(ProbeError, match="no sound that can be decoded"):
        probe.probe(tmp_path / "alone.m4a")


@pytest.mark.parametrize(("first", "read"), [("A_MPEG/L3", 0), ("A_QUEER", 1)])
def test_the_first_track_of_sound_that_can_be_decoded_is_read(tmp_path, first, read):
    hertz, path = (400, 900), tmp_path / "clip.mkv"
    for tone, name in zip(hertz, ("1.mp3", "2.flac"), strict=True):
        samples = np.round(9000 * np.sin(2 * np.pi * tone / RATE * np.arange(RATE))).astype(np.int16)
        sound_clips.write_sound(tmp_path / name, samples[:, None], RATE)
    media_makers.write_video(tmp_path / "mute.mp4", num_frames=24)
    with av.open(str(path), "w") as out, contextlib.ExitStack() as stack:
        parts = [stack.enter_context(av.open(str(tmp_path / name))) for name in ("mute.mp4", "1.mp3", "2.flac")]
        tracks = [out.add_stream_from_template(part.streams[0]) for part in parts]
        for part, track in zip(parts, tracks, strict=True):
            for packet in part.demux(part.streams[0]):
                if packet.dts is not None:
                    packet.stream = track
                    out.mux(packet)
    path.write_bytes(path.read_bytes().replace(b"A_MPEG/L3", first.encode().ljust(9, b"\0")))
    assert probe.probe(path).sound == ("mp3float", "flac")[read]
    for samples in (sound.load(request(path, 24)), sound.load_track(request(path, 24))):
        assert abs(np.abs(np.fft.rfft(samples[:, 0])).argmax() - hertz[read]) <= 1


def test_workers_deliver_the_same_samples(tmp_path):
    path = tmp_path / "clip.mp4"
    sound_clips.write(path, seconds=1, events=[0.5])
    assert probe.probe(path).sound == "aac"
    asked, pool = request(path, 24), DecodePool(0, 60)
    try:
        place = pool.array((1, RATE, 4))
        pool.submit(asked, place.slot(0)).result()
        lost = pool.submit(request(tmp_path / "none.mp4", 24)).result()
    finally:
        pool.close()
    assert np.array_equal(place.array[0].view(np.int16), sound.load(asked))
    assert isinstance(lost, Failure)


def test_latents_of_sound_follow_from_frames_and_rate():
    """As the family's pipeline counts them: duration times 25, rounded."""
    spec = SoundSpec(RATE, 2, 640, 24.0)
    for frames in (1, 9, 97, 121, 257):
        assert spec.latents(frames) == max(round(Fraction(frames * 25, 24)), 1)
        assert spec.samples(frames) == 640 * spec.latents(frames)


@pytest.mark.parametrize("name", ["x.wav", "x.flac", "x.mp3", "x.m4a", "x.ogg"])
def test_a_sound_alone_is_read_whole(tmp_path, name):
    """It has the samples that a pipeline of diffusers reads of it, and its duration says how many these are."""
    path, rate = tmp_path / name, 48_000 if name == "x.ogg" else 32_000
    at = np.arange(int(2.345 * rate)) / rate
    tone = np.round(9000 * np.sin(2 * np.pi * (200 + 150 * at) * at)).astype(np.int16)[:, None]
    sound_clips.write_sound(path, tone, rate)
    measured, spec = probe.probe(path), SoundSpec(rate, 1, 800, FPS)
    assert (measured.kind, bool(measured.sound)) == ("sound", True)
    theirs = minimax_h3.MiniMaxH3AudioReference.from_file(path).audio[0].numpy()
    assert spec.samples_of(measured.duration_seconds) == len(theirs)
    ours = sound.load(spec.request_alone(path, len(theirs)))
    np.testing.assert_allclose(ours[:, 0] / 32768, theirs, rtol=0, atol=2 / 32768)
    assert np.abs(theirs).max() > 0.2


def test_a_file_without_a_sample_is_no_sound(tmp_path):
    """Nor is one that is something else."""
    sound_clips.write_sound(tmp_path / "empty.wav", np.zeros((0, 1), np.int16), RATE)
    (tmp_path / "text.mp3").write_text("no sound", encoding="utf-8")
    for name in ("empty.wav", "text.mp3"):
        with pytest.raises(ProbeError):
            probe.probe(tmp_path / name)
