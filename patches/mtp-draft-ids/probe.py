"""Builds the head of an assistant beside a list of ids, loads it, and looks what it scores and reads.

A real Gemma4MTP without its layers: its head, its logits and its load_weights are vLLM's own.
"""

import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

WORDS, WIDTH = 512, 8
LISTED = [*range(3, 40), 41, *range(400, 472)]


def probe() -> tuple[bool, str]:
    import torch

    torch.manual_seed(0)
    table = torch.randn(WORDS, WIDTH)
    states = torch.randn(5, WIDTH)
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "ids.json")
        write(file, "3-39,41,400-471")
        with variable(file):
            made = assistant(table)
            logits = made.compute_logits(states)
            refuses_wrong_lists(file)
            refuses_centroids(table)
            own_head_is_narrowed(states)
    whole = states @ table.T
    absent = [one for one in range(WORDS) if one not in LISTED]
    if torch.isfinite(logits[:, absent]).any():
        return True, f"the head has {made.rows} rows and scores ids that the list lacks"
    assert torch.allclose(logits[:, LISTED], whole[:, LISTED], atol=1e-5), "listed ids have other logits"
    assert logits.shape == whole.shape, "logits are not over the target's vocabulary"
    assert made.rows < WORDS, "the head still has all rows"
    assert torch.equal(made.get_top_tokens(states), logits.argmax(-1)), "the largest has another id"
    with variable(None):
        plain = assistant(table)
        assert torch.allclose(plain.compute_logits(states), whole, atol=1e-5), "without a list the head changed"
        assert plain.tied, "without a list the head is no longer tied"
    return False, f"the head has {made.rows} rows, and other ids a logit of -inf"


def write(file, ranges):
    Path(file).write_text(json.dumps({"ids": ranges}), encoding="utf-8")


def variable(file):
    """Set the variable that names the list, or unset it."""
    others = {name: value for name, value in os.environ.items() if name != "GEMMASPEC_DRAFT_IDS"}
    return patch.dict(os.environ, {**others, **({"GEMMASPEC_DRAFT_IDS": file} if file else {})}, clear=True)


def assistant(table, head=None, **config):
    """Build an assistant of one width without layers, and load its table and its head, if that is not tied."""
    import torch
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
    from vllm.model_executor.models import gemma4_mtp

    text = SimpleNamespace(vocab_size=WORDS, hidden_size=WIDTH, final_logit_softcapping=None)
    whole = {"tie_word_embeddings": head is None, "use_ordered_embeddings": False, "text_config": text, **config}

    class Bare(torch.nn.Module):
        def __init__(self, **_):
            super().__init__()
            self.vocab_size = WORDS
            self.embed_tokens = VocabParallelEmbedding(WORDS, WIDTH)

    draft = SimpleNamespace(hf_config=SimpleNamespace(**whole), try_get_generation_config=dict)
    engine = SimpleNamespace(speculative_config=SimpleNamespace(draft_model_config=draft))
    with (
        alone(),
        patch.multiple(
            gemma4_mtp,
            Gemma4MultiTokenPredictor=Bare,
            _get_text_config=lambda given: given.text_config,
            get_draft_quant_config=lambda _: None,
        ),
    ):
        made = object.__new__(gemma4_mtp.Gemma4MTP)
        torch.nn.Module.__init__(made)
        init = gemma4_mtp.Gemma4MTP.__init__
        plain = getattr(init, "__wrapped__", None) or undecorated(init)
        plain(made, vllm_config=engine)
        weights = [("model.embed_tokens.weight", table), *([("lm_head.weight", head)] if head is not None else [])]
        loaded = made.load_weights(iter(weights))
        made.rows, made.tied = made.lm_head.weight.shape[0], made.lm_head.weight is made.model.embed_tokens.weight
        made.lm_head.quant_method.process_weights_after_loading(made.lm_head)
    parameters = {name for name, _ in made.named_parameters()}
    assert parameters <= loaded, f"not loaded: {parameters - loaded}"
    return made


def undecorated(init):
    """Return the __init__ that the decorator for torch.compile calls; it is among what that one closes over."""
    cells = [cell.cell_contents for cell in init.__closure__ or ()]
    return next((one for one in cells if getattr(one, "__name__", "") == "__init__"), init)


def alone():
    """Stand for a group of one device."""
    from contextlib import ExitStack

    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers import vocab_parallel_embedding

    stack = ExitStack()
    ranks = {"get_tensor_model_parallel_rank": lambda: 0, "get_tensor_model_parallel_world_size": lambda: 1}
    stack.enter_context(patch.multiple(vocab_parallel_embedding, **ranks))
    stack.enter_context(set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))))
    return stack


def refuses_wrong_lists(file):
    """Ids that are not ascending, or not of the vocabulary, end the start."""
    import torch

    for ranges in ("3-39,39", "41,3", "9-3", f"0-{WORDS}"):
        write(file, ranges)
        try:
            assistant(torch.zeros(WORDS, WIDTH))
        except ValueError:
            continue
        if has_the_patch():
            raise AssertionError(f"the list {ranges} is taken")
    write(file, "3-39,41,400-471")


def refuses_centroids(table):
    """An assistant with centroids takes no list."""
    from vllm.model_executor.models import gemma4_mtp

    if not has_the_patch():
        return
    with patch.object(gemma4_mtp, "Gemma4MTPMaskedEmbedder", lambda **_: None):
        try:
            assistant(table, use_ordered_embeddings=True)
        except ValueError:
            return
    raise AssertionError("an assistant with centroids takes a list")


def own_head_is_narrowed(states):
    """A head that is not tied to the embeddings has the listed rows of its own weights."""
    import torch

    if not has_the_patch():
        return
    head = torch.randn(WORDS, WIDTH)
    made = assistant(torch.zeros(WORDS, WIDTH), head=head)
    assert torch.allclose(made.compute_logits(states)[:, LISTED], (states @ head.T)[:, LISTED], atol=1e-5)


def has_the_patch():
    from vllm.model_executor.models import gemma4_mtp

    return hasattr(gemma4_mtp, "_draft_ids")
