"""A tiny random Qwen2 causal LM with a character tokenizer: an ordinary checkpoint folder, made in a moment."""

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

VOCABULARY = 128
SPECIALS = ("<|pad|>", "<|bos|>", "<|eos|>", "<|unk|>", "<|user|>", "<|assistant|>")
CHARACTERS = "\n" + "".join(chr(code) for code in range(0x20, 0x7F))
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_tiny_model(folder: Path, seed: int = 0, context_tokens: int = 64, hidden: int = 32) -> Path:
    """Write model and tokenizer; returns the folder. Equal arguments give equal weights."""
    tokenizer = tiny_tokenizer(context_tokens)
    tiny_model(tokenizer, seed, context_tokens, hidden).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_model(
    tokenizer: PreTrainedTokenizerFast, seed: int = 0, context_tokens: int = 64, hidden: int = 32, spread: float = 0.3
) -> Qwen2ForCausalLM:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=VOCABULARY,
                hidden_size=hidden,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=1,
                intermediate_size=2 * hidden,
                max_position_embeddings=context_tokens,
                tie_word_embeddings=True,
                # The default is far from uniform, so that a wrong position or weight shows in the log-probs.
                initializer_range=spread,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
        ).eval()


def tiny_tokenizer(context_tokens: int = 64) -> PreTrainedTokenizerFast:
    """One id per character; ids up to the padded vocabulary have names, so that any sampled id decodes."""
    reserved = [f"<|reserved_{i}|>" for i in range(VOCABULARY - len(SPECIALS) - len(CHARACTERS))]
    names = [*SPECIALS, *CHARACTERS, *reserved]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<|unk|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        bos_token="<|bos|>",
        eos_token="<|eos|>",
        unk_token="<|unk|>",
        additional_special_tokens=["<|user|>", "<|assistant|>", *reserved],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=context_tokens,
    )
