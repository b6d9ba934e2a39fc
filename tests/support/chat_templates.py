"""Chat templates of the families people train, in their essence, and tokenizers for them that are made in a moment.

Each is written from what the family's published template is known to do: where an answer ends, what follows its end,
how roles are marked, and what happens to earlier turns.
"""

from typing import NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast


class Family(NamedTuple):
    """A template with the tokens it is written in. The first of `stops` is the tokenizer's end of text."""

    template: str
    stops: tuple[str, ...]
    marks: tuple[str, ...] = ()


_CHATML_TOOLS = (
    "{%- if tools %}{{- '<|im_start|>system\\n' }}"
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}"
    "{{- '# Tools\\n<tools>' }}{%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}"
    "{{- '\\n</tools><|im_end|>\\n' }}"
    "{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}"
    "{%- endif %}"
)
_CHATML_TOOL_RESULT = (
    "{%- elif message.role == 'tool' %}"
    "{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}"
)
_CHATML_CALLS = (
    "{%- for call in message.tool_calls or [] %}"
    "{%- if not loop.first or message.content %}{{- '\\n' }}{%- endif %}"
    '{{- \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}{%- endfor %}"
)

QWEN25 = Family(
    template=_CHATML_TOOLS
    + "{%- for message in messages %}"
    + "{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}"
    + "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    + "{%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant\\n' + message.content }}"
    + _CHATML_CALLS
    + "{{- '<|im_end|>\\n' }}"
    + _CHATML_TOOL_RESULT
    + "{%- endif %}{%- endfor %}"
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}",
    stops=("<|im_end|>", "<|endoftext|>"),
    marks=("<|im_start|>",),
)
"""ChatML. A line end follows the end of a turn."""

QWEN3 = Family(
    template=_CHATML_TOOLS
    + "{%- set ns = namespace(last_query=0) %}"
    + "{%- for message in messages %}"
    + "{%- if message.role == 'user' %}{%- set ns.last_query = loop.index0 %}{%- endif %}{%- endfor %}"
    + "{%- for message in messages %}"
    + "{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}"
    + "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    + "{%- elif message.role == 'assistant' %}"
    + "{%- set content = message.content %}{%- set reasoning = message.reasoning_content or '' %}"
    + "{%- if '</think>' in content %}"
    + "{%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}"
    + "{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"
    + "{{- '<|im_start|>assistant\\n' }}"
    + "{%- if loop.index0 > ns.last_query and (loop.last or reasoning) %}"
    + "{{- '<think>\\n' + reasoning + '\\n</think>\\n\\n' }}{%- endif %}"
    + "{{- content }}"
    + _CHATML_CALLS
    + "{{- '<|im_end|>\\n' }}"
    + _CHATML_TOOL_RESULT
    + "{%- endif %}{%- endfor %}"
    + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    + "{%- if enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}",
    stops=("<|im_end|>", "<|endoftext|>"),
    marks=("<|im_start|>", "<think>", "</think>"),
)
"""Reasoning stays only in the answers after the last user's message."""

LLAMA3 = Family(
    template="{{- bos_token }}"
    "{%- for message in messages %}"
    "{{- '<|start_header_id|>' + ('ipython' if message.role == 'tool' else message.role) + '<|end_header_id|>\\n\\n' }}"
    "{%- if message.tool_calls %}"
    '{{- \'{"name": "\' + message.tool_calls[0].function.name + \'", "parameters": \' }}'
    "{{- message.tool_calls[0].function.arguments | tojson + '}' }}"
    "{%- else %}"
    "{%- if tools and message.role == 'user' and loop.first %}{{- tools | tojson + '\\n' }}{%- endif %}"
    "{{- message.content | trim }}{%- endif %}{{- '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}",
    stops=("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
    marks=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
)
"""Nothing follows the end of a turn; the text beside a tool call is left out, the text of others is trimmed."""

GEMMA = Family(
    template="{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message.role == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}"
    "{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{%- endif %}"
    "{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}"
    "{{- message.content | trim + '<end_of_turn>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}",
    stops=("<eos>", "<end_of_turn>"),
    marks=("<bos>", "<start_of_turn>"),
)
"""No system's message, no tools, and roles that alternate."""

MISTRAL = Family(
    template="{{- bos_token }}"
    "{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'user' %}"
    "{%- if tools and message == users[-1] %}"
    "{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}"
    "{{- '[INST] ' + message.content + '[/INST]' }}"
    "{%- elif message.tool_calls %}"
    "{%- for call in message.tool_calls %}"
    "{%- if call.id | length != 9 %}{{- raise_exception('Tool call IDs should be of length 9!') }}{%- endif %}"
    "{{- '[TOOL_CALLS] [' + call.function | tojson + ']' }}{%- endfor %}{{- eos_token }}"
    "{%- elif message.role == 'tool' %}"
    "{{- '[TOOL_RESULTS] ' + {'content': message.content, 'call_id': message.tool_call_id} | tojson }}"
    "{{- '[/TOOL_RESULTS]' }}"
    "{%- elif message.role == 'assistant' %}{{- ' ' + message.content | trim + eos_token }}"
    "{%- else %}{{- raise_exception('Only user, assistant and tool roles are supported!') }}{%- endif %}{%- endfor %}",
    stops=("</s>",),
    marks=("<s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]"),
)
"""The tools stand before the last user's message, wherever that is."""

GLM = Family(
    template="{{- '[gMASK]<sop>' }}"
    "{%- if tools %}{{- '<|system|>\\n' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}"
    "{{- '<|observation|>\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}"
    "{%- else %}{{- '<|' + message.role + '|>\\n' + message.content }}"
    "{%- for call in message.tool_calls or [] %}{{- '\\n<tool_call>' + call.function.name + '\\n' }}"
    "{%- for name, value in call.function.arguments.items() %}"
    "{{- '<arg_key>' + name + '</arg_key>\\n<arg_value>' + value + '</arg_value>\\n' }}{%- endfor %}"
    "{{- '</tool_call>' }}{%- endfor %}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}",
    stops=("<|endoftext|>", "<|user|>", "<|observation|>"),
    marks=("[gMASK]", "<sop>", "<|system|>", "<|assistant|>"),
)
"""An answer ends with the mark of the message after it."""

DEEPSEEK = Family(
    template="{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message.role == 'system' %}{{- message.content }}"
    "{%- elif message.role == 'user' %}{{- '<|User|>' + message.content }}"
    "{%- elif message.role == 'tool' %}{{- '<|tool_output_begin|>' + message.content + '<|tool_output_end|>' }}"
    "{%- elif message.tool_calls %}{{- '<|Assistant|>' }}{%- for call in message.tool_calls %}"
    "{{- '<|tool_call_begin|>' + call.function.name + '\\n```json\\n' + call.function.arguments + '\\n```' }}"
    "{%- endfor %}{{- '<|end_of_sentence|>' }}"
    "{%- else %}{{- '<|Assistant|>' + message.content.split('</think>')[-1] + '<|end_of_sentence|>' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|Assistant|>' + ('<think>\\n' if thinking else '') }}{%- endif %}",
    stops=("<|end_of_sentence|>",),
    marks=("<|begin_of_sentence|>", "<|User|>", "<|Assistant|>", "<|tool_call_begin|>", "<|tool_output_begin|>"),
)
"""No line ends between turns, arguments of calls as text, and reasoning cut off from every earlier answer."""

ROUNDS = Family(
    template="{%- for message in messages %}"
    "{%- if message.role == 'user' %}{{- '[Round ' ~ (loop.index0 // 2 + 1) ~ ']\\n\\nQ: ' }}"
    "{{- message.content + '\\n\\nA: ' }}"
    "{%- else %}{{- message.content + '<|eos|>' }}{%- endif %}{%- endfor %}",
    stops=("<|eos|>",),
)
"""Counts its rounds, as ChatGLM did: a message reads differently at another place."""

FAMILIES = {
    "qwen2.5": QWEN25,
    "qwen3": QWEN3,
    "llama3": LLAMA3,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "glm": GLM,
    "deepseek": DEEPSEEK,
    "rounds": ROUNDS,
}

CORPUS = (
    "Hello. Hi. Where does the river go? To the sea. And then? It becomes rain. system user assistant model tool\n"
    "<tool_call>\n<tool_response>\n</tool_response>\n</tool_call>\n# Tools\n<tools></tools>\n\n"
    '{"name": "look_up", "arguments": {"word": "river"}} water that flows\n'
) * 4


def chat_tokenizer(family: Family, pieces: str = "bytes") -> PreTrainedTokenizerFast:
    """`bytes`: byte-level pairs as Qwen and Llama 3 have them; `spaces`: words that carry the space before them, as
    Mistral and Gemma have them. Both merge enough for text to have more than one tokenisation."""
    specials = list(dict.fromkeys([*family.stops, *family.marks]))
    tokenizer = Tokenizer(models.BPE(byte_fallback=True) if pieces == "spaces" else models.BPE())
    alphabet = sorted({chr(code) for code in range(0x20, 0x7F)} | {"\n"})
    if pieces == "bytes":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([CORPUS], trainer)
    bos = next((mark for mark in family.marks if mark in ("<s>", "<bos>") or mark.startswith("<|begin")), None)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token=family.stops[0],
        additional_special_tokens=specials,
        chat_template=family.template,
        clean_up_tokenization_spaces=False,
    )
