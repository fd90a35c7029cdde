"""Write the tensors of the package's network, and what ONNX Runtime computes with it: `read_onnx.py MODEL DIFFICULTY TENSORS ANSWERS`.

It runs where onnx and onnxruntime are installed, and nothing of Reelworks.
"""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnxruntime

_SIGMAS = (0.05, 0.5, 3.0, 40.0)


def tensors(path: str) -> dict[str, np.ndarray]:
    """Return the tensors by the names in the training; those of norms have lost theirs, and are numbered as they are used."""
    graph = onnx.load(path).graph
    values = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    named = {name.removeprefix("network."): value for name, value in values.items() if name.startswith("network.")}
    reshaped = {node.input[0]: node.output[0] for node in graph.node if node.op_type == "Reshape"}
    # Scale and shift of a norm are the constants behind it.
    behind = {node.input[0]: node for node in graph.node if node.op_type in ("Mul", "Add") and node.input[1] in values}
    norms = [node for node in graph.node if node.op_type == "InstanceNormalization"]
    for number, norm in enumerate(norms):
        scale = behind[reshaped[norm.output[0]]]
        shift = behind[scale.output[0]]
        named[f"norm.{number}.weight"] = values[scale.input[1]].ravel()
        named[f"norm.{number}.bias"] = values[shift.input[1]].ravel()
    return named


def answers(path: str, difficulty: float) -> dict[str, np.ndarray]:
    """Return terrains that the network draws, the same with noise, and what it returns for these at a difficulty."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    drawn = np.random.default_rng(0)
    sigma = np.array(_SIGMAS, np.float32)

    def run(noised: np.ndarray, deviations: np.ndarray, labels: np.ndarray) -> np.ndarray:
        inputs = {"noisy": noised.astype(np.float32), "sigma": deviations, "difficulty": labels.astype(np.float32)}
        return session.run(None, inputs)[0]

    shape = (len(sigma), 1, 128, 128)
    most = np.full(len(sigma), 80, np.float32)
    terrain = run(80 * drawn.standard_normal(shape), most, np.linspace(0.1, 0.9, len(sigma)))
    noised = terrain + sigma[:, None, None, None] * drawn.standard_normal(shape).astype(np.float32)
    return {
        "terrain": terrain,
        "noised": noised,
        "sigma": sigma,
        "denoised": run(noised, sigma, np.full(len(sigma), difficulty)),
    }


if __name__ == "__main__":
    model, label, to_tensors, to_answers = sys.argv[1:]
    np.savez(to_tensors, **tensors(model))
    np.savez(to_answers, **answers(model, float(label)))
