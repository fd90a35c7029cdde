"""The memory of a training, and its time: model of a pass, measured factors, measurement, and search for settings that fit."""
