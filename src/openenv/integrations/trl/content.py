"""From observations to what a chat template shows: text, or blocks of text and images."""

from __future__ import annotations

import base64
import binascii
import io
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from openenv.core.client_types import StepResult
from openenv.core.wire.json_codec import dump_model
from openenv.integrations.trl.episode import OVER

__all__ = ["observation_text", "over", "rendered", "shown"]

_BESIDE = frozenset({"reward", "done", "metadata", "terminated", "truncated"})
_DATA_URL = "data:image/"


def rendered(observation: Any) -> Any:
    """An observation as the model sees it: text, or content blocks if there are images in it."""
    images: list[Any] = []
    rest = _without_images(_fields(observation) if isinstance(observation, BaseModel) else observation, images)
    if not images:
        return observation_text(rest)
    words = observation_text(rest) if rest else ""
    return [*({"type": "image", "image": image} for image in images), *_text_block(words)]


def shown(value: Any) -> Any:
    """What a tool or a reset gives the trainer.

    Returns:
        An observation as `rendered`; images as content blocks; everything else as it is, for the trainer to print.
    """
    if isinstance(value, StepResult | BaseModel):
        return rendered(value.observation if isinstance(value, StepResult) else value)
    if isinstance(value, list):
        return [_block(one) for one in value] if _are_blocks(value) else value
    return value if _picture(value) is None else rendered(value)


def observation_text(observation: Any) -> str:
    """An observation in words: its ``text``, if it has one, else its fields as JSON."""
    if isinstance(observation, BaseModel):
        observation = _fields(observation)
    if isinstance(observation, Mapping):
        if isinstance(text := observation.get("text"), str) and text:
            return text
        kept = {name: value for name, value in observation.items() if name not in _BESIDE}
        return json.dumps(kept, ensure_ascii=False, default=_plain)
    return str(observation)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def over(final: Any) -> Any:
    """The answer to a call after the end: what was seen last, and that the episode is over."""
    if isinstance(final, list):
        return [*final, {"type": "text", "text": OVER}]
    return OVER if final is None else f"{final}\n{OVER}"


def _fields(model: BaseModel) -> dict[str, Any]:
    return dump_model(model)


def _text_block(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text else []


def _are_blocks(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(one, dict) and isinstance(one.get("type"), str) for one in value)


def _block(one: dict[str, Any]) -> dict[str, Any]:
    picture = _picture(one)
    return one if picture is None else {"type": "image", "image": picture}


def _without_images(value: Any, images: list[Any]) -> Any:
    """The value without its images, which go to the list."""
    picture = _picture(value)
    if picture is not None:
        images.append(picture)
        return None
    if isinstance(value, dict):
        rest = {name: _without_images(one, images) for name, one in value.items()}
        return {name: one for name, one in rest.items() if one is not None}
    if isinstance(value, list):
        return [one for one in (_without_images(item, images) for item in value) if one is not None]
    return value


def _picture(value: Any) -> Any:
    """An image for PIL, from a data URL, an MCP image block or an array of pixels; one of PIL; None for all else."""
    if isinstance(value, str) and value.startswith(_DATA_URL):
        return _opened(value.partition(",")[2])
    if isinstance(value, dict) and value.get("type") == "image" and isinstance(value.get("data"), str):
        return _opened(value["data"])
    if _is_pixels(value):
        return _pillow().fromarray(value[:, :, 0] if value.shape[2] == 1 else value)
    return value if type(value).__module__.startswith("PIL.") and hasattr(value, "tobytes") else None


def _is_pixels(value: Any) -> bool:
    """Whether it is an array of height, width and 1, 3 or 4 channels of bytes."""
    shape, kind = getattr(value, "shape", ()), str(getattr(value, "dtype", ""))
    return isinstance(shape, tuple) and len(shape) == 3 and shape[2] in (1, 3, 4) and kind == "uint8"


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("Observations with images need pillow: pip install 'pillow>=11'") from error
    return Image


def _opened(encoded: str) -> Any:
    try:
        return _pillow().open(io.BytesIO(base64.b64decode(encoded, validate=True)))
    except (binascii.Error, OSError):  # not an image after all: it stays what it was
        return None
