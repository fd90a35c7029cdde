"""Configs of the page kohya_ss, translated to arguments of sd-scripts."""

from __future__ import annotations

from typing import Any

from reelworks.annexes.imports import tables

_MARKS = ("LoRA_type", "max_resolution", "epoch", "flux1_checkbox")
_TABLE = tables.table("sd_scripts", "gui")
_EMPTY = ("", None, False, 0, "None", "0")
_MAY_BE_0 = ("max_grad_norm", "prior_loss_weight")  # where no network is trained beside the model; others pass no 0 on


def translate(values: dict[str, Any]) -> dict[str, Any]:
    """Return a config's arguments; those of kohya_ss get the names of sd-scripts, and settings that are off are left out."""
    if sum(mark in values for mark in _MARKS) < 2:
        return values
    found: dict[str, Any] = {}
    kind = values.get("LoRA_type")
    module, algorithm = (
        (*_TABLE["types"].get(kind, ["networks.lora"]), None)[:2] if isinstance(kind, str) else (None, None)
    )
    family = next((name for name in ("flux1", "sd3") if values.get(f"{name}_checkbox") is True), None)
    family = {"flux1": "flux", "sd3": "sd3", None: "sdxl" if values.get("sdxl") is True else None}[family]
    unused = [*_TABLE["offsets"].get(str(values.get("noise_offset_type")), ())]
    if any(values.get(name) not in _EMPTY for name in ("max_train_steps", "max_train_epochs")):
        unused.append("epoch")
    for key, value in values.items():
        if key in unused:
            continue
        if key in _TABLE["lycoris"]["arguments"]:
            if value not in _EMPTY and (algorithm is not None or key in _TABLE["arguments"].get(str(kind), [])):
                found[f"network_args.{key}"] = value
        elif (
            value not in _EMPTY or key == "sdxl" or (module is None and key in _MAY_BE_0 and str(value) in ("0", "0.0"))
        ):
            found[_TABLE["names"].get(key, key)] = value
    ending = "" if module is None else "_network"
    found["script"] = f"{family}_train{ending}.py" if family else f"train{'_db' if module is None else ending}.py"
    if module is not None:
        if found.get("network_module") is None:
            found["network_module"] = (
                module if not (family == "flux" and module == "networks.lora") else "networks.lora_flux"
            )
        if algorithm is not None:
            found["network_args.algo"] = algorithm
        rates = [values.get(name) not in _EMPTY for name in ("unet_lr", "text_encoder_lr")]
        if "text_encoder_lr" in values and rates != [False, False]:
            found["network_train_unet_only"], found["network_train_text_encoder_only"] = not rates[1], not rates[0]
    if isinstance(lines := found.get("sample_prompts"), str):  # of a text box, from which the page makes the file
        found["sample_prompts"] = lines.splitlines()
    share = values.get("lr_warmup")
    if isinstance(share, int | float) and share and not values.get("lr_warmup_steps"):
        found["lr_warmup_steps"] = share / 100
        found.pop("lr_warmup", None)
    return found
