"""Write the miniature in ``transformers``' own checkpoint format."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from longdecode.evals.store import replacing
from longdecode.training.files import write_json
from longdecode.training.miniature.model import Miniature
from longdecode.training.miniature.tokenizer import END_OF_TEXT, END_OF_TEXT_ID, byte_tokenizer


def save_checkpoint(model: Miniature, folder: Path) -> None:
    """Write ``config.json``, ``model.safetensors`` (bfloat16) and the tokenizer files, each by rename."""
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()
    }
    with replacing(folder / "model.safetensors") as partial:
        save_file(tensors, partial, metadata={"format": "pt"})
        partial.chmod(0o644)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    write_json(folder / "config.json", model.shape.config_json())
    tokenizer: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT}
    tokenizer["model_max_length"] = model.shape.max_position_embeddings
    write_json(folder / "tokenizer_config.json", tokenizer)
    write_json(folder / "generation_config.json", {"eos_token_id": END_OF_TEXT_ID, "do_sample": False})
