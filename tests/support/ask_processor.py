"""Runs in vLLM's environment: load a folder's processor as vLLM does, and print what an image and a sound become."""

from __future__ import annotations

import json
import sys

import numpy
from PIL import Image
from transformers import AutoConfig, AutoProcessor

folder = sys.argv[1]
processor = AutoProcessor.from_pretrained(folder)
config = AutoConfig.from_pretrained(folder)
image = Image.new("RGB", (640, 480), (200, 30, 30))
seen = processor(text="<|image|>", images=[image])["input_ids"][0]
heard = processor(text="<|audio|>", audio=[numpy.zeros(16_000, dtype="float32")])["input_ids"][0]
found = {
    "processor": type(processor).__name__,
    "config": type(config).__name__,
    "image_tokens": list(seen).count(config.image_token_id),
    "audio_tokens": list(heard).count(config.audio_token_id),
}
sys.stdout.write(json.dumps(found) + "\n")
